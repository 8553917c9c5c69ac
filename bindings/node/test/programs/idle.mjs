import { open } from '../../index.mjs'

const steadfast = await open({ stateFile: null })
void (async () => { for await (const event of steadfast.events()) console.log(event) })()
const step = await steadfast.begin({ tool: 'a/b' })
step.signal.addEventListener('abort', () => {})
console.log('ready')
