import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { cp, mkdir } from 'node:fs/promises'

const [copy, stateFile] = process.argv.slice(2)
const require = createRequire(import.meta.url)
const first = require('../../index.cjs')

// The same package at another path, as a plugin of another host would bring it.
const other = join(dirname(copy), 'package')
await mkdir(other)
for (const part of ['index.cjs', 'package.json', 'lib']) await cp(join(import.meta.dirname, '../..', part), join(other, part), { recursive: true })
process.env.STEADFAST_NODE_ADDON = copy
const second = require(join(other, 'index.cjs'))

const original = await first.open({ stateFile })
const refused = await second.open({ stateFile }).then(() => 'opened', (error) => error.name)
const memory = await second.open({ stateFile: null })
const step = await memory.begin({ tool: 'a/b' })
await memory.report(step, { output: { content: 1 } })
await memory.close()
await original.close()
console.log(JSON.stringify({ refused, memory: step.next }))
