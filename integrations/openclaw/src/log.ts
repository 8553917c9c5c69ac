/** The log lines of the plugin. They name tools and codes, never arguments or results. */

import type { Shared } from './shared.js'

export interface Log {
  info(message: string): void
  warn(message: string): void
  /** Logs this once in a process. */
  once(message: string): void
}

/** The logger that the host gives to its plugins. */
export interface HostLogger {
  info(message: string): void
  warn(message: string): void
}

export function logTo(logger: HostLogger, state: Shared): Log {
  return {
    info: message => logger.info(`steadfast: ${message}`),
    warn: message => logger.warn(`steadfast: ${message}`),
    once(message) {
      if (state.logged.has(message)) return
      state.logged.add(message)
      this.warn(message)
    },
  }
}
