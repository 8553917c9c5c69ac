// An operator who is connected to a gateway. Each line of stdin is a decision for the next requests: `allow-once`,
// `allow-always`, `deny`; or a command for a session: `chat SESSION TEXT`. What happens is printed, one JSON line each.
//
// node operator.mjs CONFIG PACKAGES
import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'

const [config, packages] = process.argv.slice(2)
const { GatewayClient } = await import(pathToFileURL(`${packages}/openclaw/dist/plugin-sdk/gateway-runtime.js`))
const { port, auth } = JSON.parse(readFileSync(config, 'utf8')).gateway
const print = line => process.stdout.write(`${JSON.stringify(line)}\n`)
let decision = 'deny'
const client = new GatewayClient({
  url: `ws://127.0.0.1:${port}`,
  token: auth.token,
  clientName: 'gateway-client',
  mode: 'backend',
  caps: ['approvals'],
  scopes: ['operator.admin', 'operator.approvals', 'operator.read', 'operator.write'],
  onHelloOk: hello => print({ event: 'connected', scopes: hello.auth?.scopes }),
  onConnectError: error => print({ event: 'error', message: String(error) }),
  onEvent: async ({ event, payload }) => {
    if (event === 'chat') print({ event, payload })
    if (event !== 'plugin.approval.requested') return
    print({ event, request: payload.request })
    await client.request('plugin.approval.resolve', { id: payload.id, decision })
    print({ event: 'decided', decision })
  },
})
client.start()
for await (const line of createInterface({ input: process.stdin })) {
  const chat = /^chat (\S+) (.*)$/.exec(line)
  if (chat) {
    const [, sessionKey, message] = chat
    const sent = await client.request('chat.send', { sessionKey, message, idempotencyKey: randomUUID() })
    print({ event: 'sent', sent })
  } else {
    decision = line.trim()
    print({ event: 'ready', decision })
  }
}
process.exit(0)
