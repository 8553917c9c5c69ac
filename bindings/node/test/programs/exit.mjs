import { open } from '../../index.mjs'

const [stateFile, exit] = process.argv.slice(2)
const steadfast = await open({ stateFile })
await steadfast.guard('web/fetch', () => 1)({})
await steadfast.api('POST', '/v1/breakers/tool:web:fetch', { to: 'open' })
// Runs at the exit. An order does not keep the process running.
await steadfast.begin({ tool: 'bank/pay', args: {}, key: 'k' }, { annotations: { destructiveHint: true } })
if (exit === 'exit') process.exit(3)
if (exit === 'throw') throw new Error('on purpose')
