// Makes calls whose results fill the disk. Prints how they ended.

import { open } from '../../index.mjs'

const steadfast = await open({ stateFile: process.argv[2], config: '[guard]\nmode = "off"\n' })
const pay = steadfast.guard('bank/pay', () => 'x'.repeat(100_000), { key: ({ n }) => n, annotations: { destructiveHint: true } })
const outcomes = new Set()
for (let n = 0; n < 40; n += 1) outcomes.add(await pay({ n }).then(() => 'success', (error) => `${error.name} ${error.code}`))
const { result } = await steadfast.call({ tool: 'web/fetch' }, () => 1, { annotations: { readOnlyHint: true } })
const { store } = await steadfast.status()
console.log(JSON.stringify({ outcomes: [...outcomes], readOnly: result.status, store: typeof store.trouble }))
await steadfast.close()
