// Ends this process when its stdin closes, so that no gateway outlives the tests that share it.
process.stdin.on('end', () => {
  process.kill(process.pid, 'SIGTERM')
  setTimeout(() => process.kill(process.pid, 'SIGKILL'), 10_000).unref()
})
process.stdin.resume()
