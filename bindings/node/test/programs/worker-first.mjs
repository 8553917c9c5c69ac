import { Worker } from 'node:worker_threads'

const source = `
  const { open } = require(${JSON.stringify(new URL('../../index.cjs', import.meta.url).pathname)})
  open({ stateFile: null }).then((steadfast) => steadfast.close())
`
const worker = new Worker(source, { eval: true })
await new Promise((resolve) => worker.once('exit', resolve))
console.log('worker ended')
const { open } = await import('../../index.mjs')
const steadfast = await open({ stateFile: null })
const step = await steadfast.begin({ tool: 'a/b' })
console.log((await steadfast.report(step, { output: { content: 1 } })).next)
await steadfast.close()
