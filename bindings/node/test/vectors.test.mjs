// The vectors that all languages share: canonical forms and keys.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { test } from 'node:test'
import { memory } from './support.mjs'

const native = createRequire(import.meta.url)('../lib/native.cjs')
const read = (name) => JSON.parse(readFileSync(new URL(`../../../tests/vectors/${name}.json`, import.meta.url), 'utf8'))
const needsTestBuild = { skip: native.vectorKey === undefined && 'needs the test build' }

test('the shared vectors of canonical forms hold', needsTestBuild, () => {
  for (const { name, input, strings, volatile, canonical, sha256 } of read('canonical').accept) {
    assert.deepEqual(JSON.parse(native.vectorCanonical(input, JSON.stringify({ strings, volatile }))), { canonical, sha256 }, name)
  }
})

test('the shared vectors of texts that are refused hold', needsTestBuild, () => {
  for (const { name, input, inputHex, offset } of read('canonical').refuse) {
    const bytes = input === undefined ? Buffer.from(inputHex, 'hex') : Buffer.from(input)
    assert.equal(native.vectorRefused(bytes), offset, name)
  }
})

test('the shared vectors of keys hold', needsTestBuild, () => {
  for (const vector of read('keys').keys) {
    const { key, fingerprint, argumentsDigest } = vector
    assert.deepEqual(JSON.parse(native.vectorKey(JSON.stringify(vector))), { key, fingerprint, argumentsDigest: argumentsDigest ?? null }, vector.name)
  }
})

test('calls have the keys of the vectors', async (t) => {
  const explicit = read('keys').keys.filter(({ kind, session, actor, inputResponses, requestState, text }) =>
    kind === 'explicit' && session && actor && !inputResponses && !requestState && !/\p{Cc}/u.test(text))
  assert(explicit.length > 0)
  for (const { name, namespace, tool, tenant, workspace, session, actor, text, fingerprint } of explicit) {
    const steadfast = await memory(t)
    const call = { namespace, tool, tenant, workspace, session, actor, key: text }
    await steadfast.report(await steadfast.begin(call), { output: { content: null } })
    const { result } = await steadfast.begin(call)
    assert.equal(result.cache.keyFingerprint, fingerprint, name)
  }
})
