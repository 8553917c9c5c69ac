'use strict'

/** Finds and loads the native part for this platform: built here, or from its own package. */

const { existsSync } = require('node:fs')
const { join } = require('node:path')
const { platform } = require('./platform.cjs')

/** Names another file, for programs that are packed into one. */
const VARIABLE = 'STEADFAST_NODE_ADDON'

function load() {
  if (process.env[VARIABLE]) return require(process.env[VARIABLE])
  const name = platform()
  const local = join(__dirname, '..', `steadfast-node.${name}.node`)
  if (existsSync(local)) return require(local)
  try {
    return require(`steadfast-node-${name}`)
  } catch (cause) {
    throw new Error(
      `steadfast-node has no native part for this platform (${name}): install the package steadfast-node-${name}. ` +
        'If your lock file has it, install again without --omit=optional.',
      { cause },
    )
  }
}

module.exports = load()
