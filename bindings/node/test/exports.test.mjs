// The package as it is installed: its entries, its types, its files.

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdir, readFile, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { folder } from './support.mjs'

const run = promisify(execFile)
const root = join(import.meta.dirname, '..')
const read = async (name) => JSON.parse(await readFile(join(root, name), 'utf8'))

/** Creates a program beside an installed package. */
async function project(t, files) {
  const path = await folder(t)
  await mkdir(join(path, 'node_modules'))
  await symlink(root, join(path, 'node_modules', 'steadfast-node'))
  await symlink(join(root, 'test', 'node_modules', '@types'), join(path, 'node_modules', '@types'))
  for (const [name, text] of Object.entries(files)) await writeFile(join(path, name), text)
  return path
}

test('import and require find the package and its adapters', async (t) => {
  const path = await project(t, {
    'a.mjs': `import { open } from 'steadfast-node'
import { guardTools } from 'steadfast-node/ai-sdk'
import { wrapToolCall } from 'steadfast-node/langchain'
import { guardCallTool } from 'steadfast-node/mcp'
console.log(typeof open, typeof guardTools, typeof wrapToolCall, typeof guardCallTool)`,
    'b.cjs': `console.log(typeof require('steadfast-node').open, require('steadfast-node/package.json').name)`,
  })
  assert.equal((await run(process.execPath, ['a.mjs'], { cwd: path })).stdout, 'function function function function\n')
  assert.equal((await run(process.execPath, ['b.cjs'], { cwd: path })).stdout, 'function steadfast-node\n')
})

test('the example of the README runs and prints what it says', async (t) => {
  const readme = await readFile(join(root, 'README.md'), 'utf8')
  const [, program] = readme.match(/```js\n([^]*?)```/)
  assert(program.trim().split('\n').length <= 10, 'ten lines')
  const path = await project(t, { 'example.mjs': program })
  const { stdout } = await run(process.execPath, ['example.mjs'], { cwd: path })
  const expected = [...program.matchAll(/\/\/ prints (.*)$/gm)].map(([, line]) => line)
  assert.deepEqual(stdout.trim().split('\n'), expected)
})

test('the types fit programs of both kinds', async (t) => {
  const program = await readFile(join(root, 'test', 'programs', 'types.ts'), 'utf8')
  const path = await project(t, {
    'types.mts': program, 'types.cts': program,
    'tsconfig.json': JSON.stringify({ compilerOptions: { strict: true, noEmit: true, module: 'nodenext', target: 'esnext', lib: ['esnext', 'dom', 'dom.iterable'], types: [], skipLibCheck: false } }),
  })
  const tsc = join(root, 'test', 'node_modules', 'typescript', 'bin', 'tsc')
  const { stdout } = await run(process.execPath, [tsc, '--project', path], { cwd: path }).catch((error) => error)
  assert.equal(stdout, '')
})

test('the declared exports and the real ones are the same', async () => {
  const declared = await readFile(join(root, 'index.d.ts'), 'utf8')
  const names = [...declared.matchAll(/^export (?:class|function|const) (\w+)/gm)].map(([, name]) => name)
  assert.deepEqual(names.sort(), Object.keys(await import('../index.mjs')).sort())
})

test('the packed packages install without scripts and run', async (t) => {
  const path = await folder(t)
  const { stdout } = await run(process.execPath, [join(root, 'scripts', 'pack.mjs'), path])
  const tarballs = stdout.trim().split('\n')
  assert.equal(tarballs.length, 2)
  await writeFile(join(path, 'package.json'), '{"private":true}')
  await run('npm', ['install', '--ignore-scripts', '--offline', '--no-audit', '--no-fund', ...tarballs], { cwd: path })
  const program = `import { open } from 'steadfast-node'
const steadfast = await open({ stateFile: null })
console.log(await steadfast.guard('a/b', () => 'runs')({}))
await steadfast.close()`
  await writeFile(join(path, 'a.mjs'), program)
  assert.equal((await run(process.execPath, ['a.mjs'], { cwd: path, env: { ...process.env, STEADFAST_NODE_ADDON: '' } })).stdout, 'runs\n')
})

test('the platform packages are those of the targets, with the version of the package', async () => {
  const { version, optionalDependencies, scripts, napi } = await read('package.json')
  assert.equal(Object.keys(optionalDependencies).length, napi.targets.length)
  for (const one of Object.values(optionalDependencies)) assert.equal(one, version)
  for (const hook of ['preinstall', 'install', 'postinstall', 'prepare']) assert.equal(scripts[hook], undefined)
  const { stdout } = await run('grep', ['-m1', '^version', join(root, '..', '..', 'Cargo.toml')])
  assert.match(stdout, new RegExp(`"${version.replaceAll('.', '\\.')}"`))
})
