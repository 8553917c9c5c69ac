/** Time limits of our own: the host waits for its hooks for long, or forever. */

/** The work took longer than its limit. */
export class TimeLimitError extends Error {
  constructor(ms: number) {
    super(`no answer within ${ms} ms`)
    this.name = 'TimeLimitError'
  }
}

/** Returns the result of the work, or rejects with {@link TimeLimitError} after so many milliseconds. The work goes on. */
export function within<T>(ms: number, work: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new TimeLimitError(ms)), ms)
    timer.unref()
    work.then(resolve, reject).finally(() => clearTimeout(timer))
  })
}

export function isPromise<T>(value: T | Promise<T>): value is Promise<T> {
  return value instanceof Promise
}
