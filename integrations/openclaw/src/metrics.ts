/** Serves the metrics of the engine, in the Prometheus format. */

import { createServer, type Server } from 'node:http'
import { engineOf, messageOf } from './engine.js'
import type { Log } from './log.js'
import type { Settings } from './settings.js'
import type { Shared } from './shared.js'

export interface MetricsServer {
  readonly address: NonNullable<Settings['metricsAddress']>
  readonly server: Server
}

/** Starts or stops the server, so that it listens where the settings say. */
export function applyMetrics(state: Shared, log: Log): void {
  const wanted = state.settings?.metricsAddress
  const { metrics } = state
  if (metrics?.address.host === wanted?.host && metrics?.address.port === wanted?.port) return
  stopMetrics(state)
  if (!wanted) return
  const server = createServer((request, response) => {
    if (request.method !== 'GET' || request.url?.split('?')[0] !== '/metrics') {
      response.writeHead(404, { 'content-type': 'text/plain' }).end('the metrics are at /metrics\n')
      return
    }
    Promise.resolve(engineOf(state, log)).then(engine => engine.metrics()).then(
      text => response.writeHead(200, { 'content-type': 'text/plain; version=0.0.4; charset=utf-8' }).end(text),
      error => response.writeHead(503, { 'content-type': 'text/plain' }).end(`${messageOf(error)}\n`),
    )
  })
  server.on('error', error => log.warn(`no metrics at ${wanted.host}:${wanted.port}: ${error.message}`))
  server.listen(wanted.port, wanted.host, () => {
    const bound = server.address()
    if (bound !== null && typeof bound === 'object') log.info(`metrics at http://${wanted.host}:${bound.port}/metrics`)
  })
  server.unref()
  state.metrics = { address: wanted, server }
}

export function stopMetrics(state: Shared): void {
  state.metrics?.server.close()
  state.metrics = undefined
}
