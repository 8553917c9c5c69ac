import { parentPort, workerData } from 'node:worker_threads'
import { open } from '../../index.mjs'

const steadfast = await open(workerData)
const pay = steadfast.guard('bank/pay', () => new Promise(() => parentPort.postMessage('running')), { key: () => 'k', annotations: { destructiveHint: true } })
await pay({ cents: 1 })
