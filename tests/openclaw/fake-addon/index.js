// A stand-in for the engine while its package is being built: the loop guard alone.
const engines = (globalThis[Symbol.for('fake steadfast-node')] ??= new Map())
export const version = '0.0.0'

function verdict(remarks) {
  const has = marker => remarks.some(text => text.includes(marker))
  return has('LIMIT') ? 'tool_error_limit' : has('LOOP') ? 'loop_detected' : 'none'
}

class SteadfastError extends Error {
  constructor(code, message) { super(message); this.code = code }
}

class Steadfast {
  constructor(stateFile, text) {
    Object.assign(this, { stateFile, failures: new Map(), totals: new Map(), calls: new Map(), next: 0 })
    this.configure(text)
  }
  configure(text) {
    this.identical = Number(/guard.identical = (\d+)/.exec(text)?.[1] ?? 2)
    this.perTurn = Number(/guard.per_turn = (\d+)/.exec(text)?.[1] ?? 5)
    this.timeouts = new Map([...text.matchAll(/\[tools\."(\S+)"\]\n(?:(?!\[).*\n)*?timeout = "(\d+)s"/g)].map(([, tool, seconds]) => [tool, Number(seconds)]))
    this.mode = /^mode = "(\w+)"/m.exec(text)?.[1] ?? 'enforce'
  }
  keys(call) {
    const subject = `${call.session}|${call.namespace}/${call.tool}|${JSON.stringify(call.args ?? {})}`
    return { subject, turn: `${call.session}|${call.turn}` }
  }
  limitText(turn) { return `[TOOL ERROR LIMIT] ${this.totals.get(turn)} tool calls have failed in this turn.` }
  count(call) {
    const { subject, turn } = this.keys(call)
    this.failures.set(subject, (this.failures.get(subject) ?? 0) + 1)
    this.totals.set(turn, (this.totals.get(turn) ?? 0) + 1)
    const remarks = []
    if (this.failures.get(subject) >= this.identical) remarks.push(`[LOOP DETECTED] ${call.tool} has failed ${this.failures.get(subject)} times with identical arguments.`)
    if (this.totals.get(turn) >= this.perTurn) remarks.push(this.limitText(turn))
    return this.mode === 'enforce' ? remarks : []
  }
  begin(call) {
    if (typeof JSON.stringify(call.args) !== 'string' || JSON.stringify(call.args).length > 1 << 20) throw new SteadfastError('invalid_envelope', 'the call is too long')
    const { subject, turn } = this.keys(call)
    const refuse = (code, message) => {
      this.totals.set(turn, (this.totals.get(turn) ?? 0) + 1)
      if (this.totals.get(turn) >= this.perTurn && !message.includes('LIMIT')) message += `\n${this.limitText(turn)}`
      return { next: 'answer', remarks: [], verdict: message.includes('LIMIT') ? 'tool_error_limit' : 'loop_detected', result: { status: 'error', fromCache: false, error: { code, message } } }
    }
    if (this.mode === 'enforce' && (this.totals.get(turn) ?? 0) >= this.perTurn) return refuse('tool_error_limit', this.limitText(turn))
    if (this.mode === 'enforce' && (this.failures.get(subject) ?? 0) >= this.identical) return refuse('loop_detected', `[LOOP DETECTED] This call was not run.`)
    const id = ++this.next
    this.calls.set(id, call)
    const abort = new AbortController()
    const seconds = this.timeouts.get(`${call.namespace}/${call.tool}`)
    if (seconds) setTimeout(() => this.calls.delete(id) && abort.abort(new SteadfastError('timeout', 'too long')), seconds * 1000)
    return { next: 'run', id, attempt: 1, run: `r${id}`, signal: abort.signal }
  }
  report({ id }, report) {
    const call = this.calls.get(id)
    if (!call) throw new SteadfastError('no_such_call', 'there is no such call')
    this.calls.delete(id)
    if (!report.failure) {
      this.failures.delete(this.keys(call).subject)
      return { next: 'answer', remarks: [], verdict: 'none', result: { status: 'success', fromCache: false, output: report.output } }
    }
    const remarks = this.count(call)
    return { next: 'answer', remarks, verdict: verdict(remarks), result: { status: 'error', fromCache: false, error: { code: 'tool_error', message: report.failure.message } } }
  }
  giveBack({ id }) { return this.calls.delete(id) }
  cancel({ id }) { return this.calls.delete(id) }
  heartbeat() { return true }
  answered(call, answer) {
    if (answer.kind === 'succeeded') return { verdict: 'none', text: '', remarks: [] }
    const remarks = this.count(call)
    return { verdict: verdict(remarks), text: remarks.join('\n'), remarks }
  }
  async metrics() { return 'openclaw_tool_calls_total 0\n' }
  async reconfigure(text) { this.configure(text) }
  async close() { return { shared: false, ended: 0, lost: 0 } }
}

export async function open({ stateFile = null, config = '' } = {}) {
  const known = engines.get(stateFile)
  if (known) { known.configure(config); return known }
  const opened = new Steadfast(stateFile, config)
  engines.set(stateFile, opened)
  return opened
}
