'use strict'

/** Returns true on a Linux whose C library is musl. */
function isMusl() {
  const { report } = process
  const before = report.excludeNetwork
  // The report would look up the names of all connections otherwise.
  report.excludeNetwork = true
  const { header } = report.getReport()
  report.excludeNetwork = before
  return header.glibcVersionRuntime === undefined
}

/** Returns the name of the platform, as in the names of the native package and its file. */
function platform() {
  const { platform, arch } = process
  switch (platform) {
    case 'linux': return `linux-${arch}-${isMusl() ? 'musl' : 'gnu'}`
    case 'win32': return `win32-${arch}-msvc`
    default: return `${platform}-${arch}`
  }
}

module.exports = { platform }
