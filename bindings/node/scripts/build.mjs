// Builds the native part for this machine and puts it where `lib/native.cjs` looks for it.
// `--tests`: quickly, with the functions that only the tests use. Without it, as it is released.

import { execFileSync, spawnSync } from 'node:child_process'
import { copyFileSync, renameSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'

const forTests = process.argv.includes('--tests')
const cargo = ['build', '--package', 'steadfast-node-addon', '--lib', '--message-format', 'json-render-diagnostics']
cargo.push(...(forTests ? ['--features', 'testing'] : ['--release']))
const root = join(import.meta.dirname, '..')
const options = { cwd: root, stdio: ['ignore', 'pipe', 'inherit'], encoding: 'utf8', maxBuffer: 1 << 28 }
const messages = execFileSync(process.env.CARGO ?? 'cargo', cargo, options).trim().split('\n')
const artifact = messages
  .map((line) => JSON.parse(line))
  .findLast(({ reason, target }) => reason === 'compiler-artifact' && target.name === 'steadfast_node')
const library = artifact.filenames.find((name) => /\.(so|dylib|dll)$/.test(name))

const { platform } = createRequire(import.meta.url)('../lib/platform.cjs')
const target = join(root, `steadfast-node.${platform()}.node`)
// Replaced at once: a process may have the old one open.
copyFileSync(library, `${target}.new`)
if (forTests && process.platform === 'linux') {
  // Ten times smaller. Where there is no `strip`, it stays large.
  spawnSync('strip', ['--strip-debug', `${target}.new`])
}
renameSync(`${target}.new`, target)
