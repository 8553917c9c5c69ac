// Packs the package and the native part for this machine, as they are published: `pack.mjs FOLDER`.
// `napi create-npm-dirs` and `napi prepublish` do the same for all platforms.

import { execFileSync } from 'node:child_process'
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join, resolve } from 'node:path'

const root = join(import.meta.dirname, '..')
const folder = resolve(process.argv[2] ?? '.')
const name = createRequire(import.meta.url)('../lib/platform.cjs').platform()
const { version, license } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))
const [os, cpu, libc] = name.split('-')
const file = `steadfast-node.${name}.node`
const manifest = {
  name: `steadfast-node-${name}`, version, license, os: [os], cpu: [cpu], main: file, files: [file],
  libc: os === 'linux' ? [libc === 'musl' ? 'musl' : 'glibc'] : undefined,
}
const native = join(folder, 'native')
mkdirSync(native, { recursive: true })
copyFileSync(join(root, file), join(native, file))
writeFileSync(join(native, 'package.json'), `${JSON.stringify(manifest, null, 2)}\n`)
for (const cwd of [root, native]) {
  const packed = execFileSync('npm', ['pack', '--pack-destination', folder, '--ignore-scripts', '--json'], { cwd, encoding: 'utf8' })
  console.log(join(folder, JSON.parse(packed)[0].filename))
}
