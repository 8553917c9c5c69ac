// A server with everything that the conformance suite of MCP calls by name, in both eras of the protocol: on stdio, or
// over HTTP on the port that is the first argument. With `modern` as the last argument it supports the modern era only.
//
// The suite defines the answer of each name. Nothing here does more than that.
'use strict';

const http = require('node:http');
const { createHmac, randomUUID, timingSafeEqual } = require('node:crypto');
const { getRequestListener } = require('@hono/node-server');
const {
  McpServer,
  ProtocolError,
  ResourceTemplate,
  WebStandardStreamableHTTPServerTransport,
  createMcpHandler,
  fromJsonSchema,
  hostHeaderValidationResponse,
  inputRequired,
  isLegacyRequest,
  localhostAllowedHostnames,
  localhostAllowedOrigins,
  originValidationResponse,
} = require('@modelcontextprotocol/server');

const INVALID_PARAMS = -32602;
/// A red pixel, and a silent sound.
const PIXEL =
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==';
const SILENCE = 'UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=';

/// A server for one client, or in the modern era for one request. `changes` notifies all clients that a list has changed.
function make(changes) {
  const server = new McpServer(
    { name: 'conformance', version: '1.0.0' },
    {
      capabilities: {
        tools: { listChanged: true },
        prompts: { listChanged: true },
        resources: { subscribe: true, listChanged: true },
        logging: {},
        completions: {},
      },
      // The state contains the question, and is signed.
      requestState: { verify: state => opened(state) },
      inputRequired: { legacyShim: false },
    },
  );
  content(server);
  talk(server);
  schemas(server);
  rounds(server);
  era(server, changes);
  resources(server);
  prompts(server);
  return server;
}

// ---- tools ----

const NOTHING = { type: 'object', properties: {} };

/// Validators by the text of their schema. In the modern era there is a server for each request, and compiling is slow.
const compiled = new Map();

function validator(schema) {
  const text = JSON.stringify(schema);
  if (!compiled.has(text)) {
    compiled.set(text, fromJsonSchema(schema));
  }
  return compiled.get(text);
}

function tool(server, name, description, run, inputSchema = NOTHING) {
  const config = { description, inputSchema: validator(inputSchema) };
  server.registerTool(name, config, (given, ctx) => run(given, ctx));
}

function content(server) {
  const fixed = (name, ...blocks) => tool(server, name, `Answers with ${name}`, () => ({ content: blocks }));
  fixed('test_simple_text', text('This is a simple text response for testing.'));
  fixed('test_image_content', { type: 'image', data: PIXEL, mimeType: 'image/png' });
  fixed('test_audio_content', { type: 'audio', data: SILENCE, mimeType: 'audio/wav' });
  fixed(
    'test_embedded_resource',
    embedded('test://embedded-resource', 'text/plain', 'This is an embedded resource content.'),
  );
  fixed(
    'test_multiple_content_types',
    text('Multiple content types test:'),
    { type: 'image', data: PIXEL, mimeType: 'image/png' },
    embedded('test://mixed-content-resource', 'application/json', '{"test":"data","value":123}'),
  );
  tool(server, 'test_error_handling', 'Fails', () => {
    throw new Error('This tool intentionally returns an error for testing');
  });
}

/// Tools that send messages or questions to their client while they run, as in the older era.
function talk(server) {
  tool(server, 'test_tool_with_logging', 'Logs three times', async (_, ctx) => {
    for (const line of ['Tool execution started', 'Tool processing data', 'Tool execution completed']) {
      await ctx.mcpReq.log('info', line);
      await pause(50);
    }
    return said('logged');
  });
  tool(server, 'test_logging_tool', 'Logs', async (_, ctx) => {
    await ctx.mcpReq.log('info', 'logged');
    return said('logged');
  });
  tool(server, 'test_tool_with_progress', 'Tells how far it is', async (_, ctx) => {
    const progressToken = ctx.mcpReq._meta?.progressToken;
    for (const progress of [0, 50, 100]) {
      if (progressToken !== undefined) {
        const params = { progressToken, progress, total: 100, message: `at ${progress}` };
        await ctx.mcpReq.notify({ method: 'notifications/progress', params });
      }
      await pause(50);
    }
    return said('done');
  });
  tool(
    server,
    'test_sampling',
    'Asks the model of its client',
    async ({ prompt }, ctx) => {
      const messages = [{ role: 'user', content: text(prompt) }];
      const answer = await ctx.mcpReq.requestSampling({ messages, maxTokens: 100 });
      return said(`LLM response: ${answer.content.text}`);
    },
    words('prompt'),
  );
  const elicit = (name, message, properties, required) =>
    tool(
      server,
      name,
      'Asks the user',
      async (given, ctx) => {
        const requestedSchema = { type: 'object', properties, required };
        const answer = await ctx.mcpReq.elicitInput({ message: given.message ?? message, requestedSchema });
        return said(
          `User response: action=${answer.action}, content=${JSON.stringify(answer.content ?? {})}`,
        );
      },
      message ? NOTHING : words('message'),
    );
  elicit(
    'test_elicitation',
    undefined,
    {
      username: { type: 'string', description: "User's response" },
      email: { type: 'string', description: "User's email address" },
    },
    ['username', 'email'],
  );
  elicit('test_elicitation_sep1034_defaults', 'Please look at the defaults', {
    name: { type: 'string', default: 'John Doe' },
    age: { type: 'integer', default: 30 },
    score: { type: 'number', default: 95.5 },
    status: { type: 'string', enum: ['active', 'inactive', 'pending'], default: 'active' },
    verified: { type: 'boolean', default: true },
  });
  const options = ['option1', 'option2', 'option3'];
  const titled = ['First', 'Second', 'Third'].map((word, at) => ({
    const: `value${at + 1}`,
    title: `${word} Option`,
  }));
  elicit('test_elicitation_sep1330_enums', 'Please choose', {
    untitledSingle: { type: 'string', enum: options },
    titledSingle: { type: 'string', oneOf: titled },
    legacyEnum: {
      type: 'string',
      enum: ['opt1', 'opt2', 'opt3'],
      enumNames: ['Option One', 'Option Two', 'Option Three'],
    },
    untitledMulti: { type: 'array', items: { type: 'string', enum: options } },
    titledMulti: { type: 'array', items: { anyOf: titled } },
  });
  tool(server, 'test_reconnection', 'Hangs up, and answers who asks again', async (_, ctx) => {
    ctx.http?.closeSSE?.();
    await pause(100);
    return said('Reconnected');
  });
}

function schemas(server) {
  tool(server, 'json_schema_2020_12_tool', 'Has every word of JSON Schema', () => said('valid'), {
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    type: 'object',
    $defs: {
      address: {
        $anchor: 'addressDef',
        type: 'object',
        properties: { street: { type: 'string' }, city: { type: 'string' } },
      },
    },
    properties: {
      name: { type: 'string' },
      address: { $ref: '#/$defs/address' },
      contactMethod: { type: 'string', enum: ['phone', 'email'] },
      phone: { type: 'string' },
      email: { type: 'string' },
    },
    allOf: [{ anyOf: [{ required: ['phone'] }, { required: ['email'] }] }],
    if: { properties: { contactMethod: { const: 'phone' } }, required: ['contactMethod'] },
    then: { required: ['phone'] },
    else: { required: ['email'] },
    additionalProperties: false,
  });
  tool(server, 'test_custom_header', 'Has an argument that is also a header', () => said('in both'), {
    type: 'object',
    properties: { region: { type: 'string', 'x-mcp-header': 'Region' } },
  });
}

// ---- tools that answer with a question, as in the modern era ----

function rounds(server) {
  const name = form('What is your name?', 'name', 'string');
  const asks = (tail, run) =>
    tool(server, `test_input_required_result_${tail}`, 'Needs an answer first', (_, ctx) => run(ctx));

  asks('elicitation', ctx => {
    const given = accepted(ctx, 'user_name')?.name;
    return given === undefined ? inputRequired({ inputRequests: { user_name: name } }) : said(`Hello, ${given}!`);
  });
  asks('sampling', ctx => {
    const answer = ctx.mcpReq.inputResponses?.capital_question;
    const asked = { capital_question: sampling('What is the capital of France?', 100) };
    return answer ? said(`The model says: ${answer.content?.text}`) : inputRequired({ inputRequests: asked });
  });
  asks('list_roots', ctx => {
    const roots = ctx.mcpReq.inputResponses?.client_roots?.roots;
    const asked = { client_roots: { method: 'roots/list', params: {} } };
    return roots ? said(`Roots: ${roots.map(root => root.uri)}`) : inputRequired({ inputRequests: asked });
  });
  const confirms = ctx => {
    const confirm = form('Please confirm', 'ok', 'boolean');
    const answered = ctx.mcpReq.inputResponses?.confirm && ctx.mcpReq.requestState();
    return answered
      ? said('state-ok')
      : inputRequired({ inputRequests: { confirm }, requestState: sealed('confirm') });
  };
  asks('request_state', confirms);
  asks('tampered_state', confirms);
  asks('multiple_inputs', ctx => {
    const asked = {
      user_name: name,
      greeting: sampling('Generate a greeting', 50),
      client_roots: { method: 'roots/list', params: {} },
    };
    const all = Object.keys(asked).every(key => ctx.mcpReq.inputResponses?.[key]);
    return all ? said('all there') : inputRequired({ inputRequests: asked, requestState: sealed('all') });
  });
  asks('multi_round', ctx => {
    const round = ctx.mcpReq.requestState();
    if (round === 'two' && ctx.mcpReq.inputResponses?.step2) {
      return said('both steps are done');
    }
    if (round === 'one' && ctx.mcpReq.inputResponses?.step1) {
      const step2 = form('Step 2: What is your favorite color?', 'color', 'string');
      return inputRequired({ inputRequests: { step2 }, requestState: sealed('two') });
    }
    const step1 = form('Step 1: What is your name?', 'name', 'string');
    return inputRequired({ inputRequests: { step1 }, requestState: sealed('one') });
  });
  asks('capabilities', ctx => {
    const can = capabilities(ctx);
    const asked = {};
    if (can.elicitation) {
      asked.user_name = name;
    }
    if (can.sampling) {
      asked.greeting = sampling('Generate a greeting', 50);
    }
    return Object.keys(asked).length ? inputRequired({ inputRequests: asked }) : said('cannot be asked');
  });
}

/// Tools for the other requirements of the modern era.
function era(server, changes) {
  tool(server, 'test_missing_capability', 'Needs a client that samples', (_, ctx) => {
    // The library refuses it for other clients.
    const greeting = sampling('Generate a greeting', 50);
    return ctx.mcpReq.inputResponses?.greeting ? said('it samples') : inputRequired({ inputRequests: { greeting } });
  });
  tool(server, 'test_streaming_elicitation', 'Asks while it streams', async (_, ctx) => {
    const progressToken = ctx.mcpReq._meta?.progressToken;
    if (progressToken !== undefined) {
      const params = { progressToken, progress: 1, total: 2 };
      await ctx.mcpReq.notify({ method: 'notifications/progress', params });
    }
    const user_name = form('What is your name?', 'name', 'string');
    return accepted(ctx, 'user_name') ? said('thank you') : inputRequired({ inputRequests: { user_name } });
  });
  tool(server, 'test_trigger_tool_change', 'Changes the tools', () => {
    changes(server).toolsChanged();
    return said('changed');
  });
  tool(server, 'test_trigger_prompt_change', 'Changes the prompts', () => {
    changes(server).promptsChanged();
    return said('changed');
  });
}

// ---- resources and prompts ----

function resources(server) {
  const fixed = (uri, mimeType, held) =>
    server.registerResource(uri, uri, { description: `What is at ${uri}`, mimeType }, () => ({
      contents: [{ uri, mimeType, ...held }],
    }));
  fixed('test://static-text', 'text/plain', { text: 'This is the content of the static text resource.' });
  fixed('test://static-binary', 'image/png', { blob: PIXEL });
  fixed('test://watched-resource', 'text/plain', { text: 'watched' });
  fixed('test://example-resource', 'text/plain', { text: 'an example' });
  server.registerResource(
    'template',
    new ResourceTemplate('test://template/{id}/data', { list: undefined }),
    { description: 'A resource for each id', mimeType: 'application/json' },
    (uri, { id }) => {
      const held = JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` });
      return { contents: [{ uri: uri.href, mimeType: 'application/json', text: held }] };
    },
  );
  // Nothing here changes, so no subscription is stored.
  server.server.setRequestHandler('resources/subscribe', () => ({}));
  server.server.setRequestHandler('resources/unsubscribe', () => ({}));
}

function prompts(server) {
  const prompt = (name, argsSchema, run) => {
    const config = { description: `A prompt: ${name}` };
    if (argsSchema) {
      server.registerPrompt(name, { ...config, argsSchema: validator(argsSchema) }, run);
    } else {
      server.registerPrompt(name, config, ctx => run({}, ctx));
    }
  };
  const user = content => ({ role: 'user', content });
  prompt('test_simple_prompt', undefined, () => ({
    messages: [user(text('This is a simple prompt for testing.'))],
  }));
  prompt('test_prompt_with_arguments', words('arg1', 'arg2'), ({ arg1, arg2 }) => ({
    messages: [user(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`))],
  }));
  prompt('test_prompt_with_embedded_resource', words('resourceUri'), ({ resourceUri }) => ({
    messages: [
      user(embedded(resourceUri, 'text/plain', 'Embedded resource content for testing.')),
      user(text('Please process the embedded resource above.')),
    ],
  }));
  prompt('test_prompt_with_image', undefined, () => ({
    messages: [
      user({ type: 'image', data: PIXEL, mimeType: 'image/png' }),
      user(text('Please analyze the image above.')),
    ],
  }));
  prompt('test_input_required_result_prompt', undefined, (_, ctx) => {
    const user_context = form('What context should the prompt use?', 'context', 'string');
    const given = accepted(ctx, 'user_context')?.context;
    return given === undefined
      ? inputRequired({ inputRequests: { user_context } })
      : { messages: [user(text(`Use this context: ${given}`))] };
  });
  server.server.setRequestHandler('completion/complete', () => ({
    completion: { values: ['paris', 'park', 'party'], total: 3, hasMore: false },
  }));
}

// ---- parts of messages ----

function text(words) {
  return { type: 'text', text: words };
}

function said(words) {
  return { content: [text(words)] };
}

function embedded(uri, mimeType, held) {
  return { type: 'resource', resource: { uri, mimeType, text: held } };
}

/// A schema of strings that are all required.
function words(...names) {
  const properties = Object.fromEntries(names.map(name => [name, { type: 'string', description: name }]));
  return { type: 'object', properties, required: names };
}

function form(message, field, type) {
  const requestedSchema = { type: 'object', properties: { [field]: { type } }, required: [field] };
  return { method: 'elicitation/create', params: { mode: 'form', message, requestedSchema } };
}

function sampling(question, maxTokens) {
  const messages = [{ role: 'user', content: text(question) }];
  return { method: 'sampling/createMessage', params: { messages, maxTokens } };
}

/// Returns the user's input, if there is any.
function accepted(ctx, key) {
  const answer = ctx.mcpReq.inputResponses?.[key];
  return answer?.action === 'accept' ? answer.content : undefined;
}

function capabilities(ctx) {
  return ctx.mcpReq.envelope?.['io.modelcontextprotocol/clientCapabilities'] ?? {};
}

/// State that only this server can have written. The secret is public, because this is a test.
function sealed(state) {
  return `${state}.${signature(state).toString('hex')}`;
}

function opened(text) {
  const [state, given] = text.split('.');
  const [right, wrong] = [signature(state), Buffer.from(given ?? '', 'utf8')];
  if (wrong.length !== 64 || !timingSafeEqual(right, Buffer.from(given, 'hex'))) {
    throw new ProtocolError(INVALID_PARAMS, 'this state is not ours');
  }
  return state;
}

function signature(state) {
  return createHmac('sha256', 'conformance').update(state).digest();
}

function pause(ms) {
  return new Promise(done => setTimeout(done, ms));
}

// ---- transports ----

function onStdio() {
  const { serveStdio } = require('@modelcontextprotocol/server/stdio');
  serveStdio(
    () =>
      make(server => ({
        toolsChanged: () => server.sendToolListChanged(),
        promptsChanged: () => server.sendPromptListChanged(),
      })),
    { legacy: isModernOnly ? 'reject' : 'serve' },
  );
}

function overHttp(port) {
  const modern = createMcpHandler(() => make(() => modern.notify), { legacy: 'reject' });
  const sessions = new Map();

  async function older(request) {
    const id = request.headers.get('mcp-session-id');
    if (id !== null) {
      const found = sessions.get(id);
      return found ? found.handleRequest(request) : failed(404, -32001, 'Session not found');
    }
    const transport = new WebStandardStreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: id => void sessions.set(id, transport),
      onsessionclosed: id => void sessions.delete(id),
      eventStore: new Events(),
      retryInterval: 50,
    });
    await make(server => ({
      toolsChanged: () => server.sendToolListChanged(),
      promptsChanged: () => server.sendPromptListChanged(),
    })).connect(transport);
    return transport.handleRequest(request);
  }

  async function handle(request) {
    const refusal =
      hostHeaderValidationResponse(request, localhostAllowedHostnames()) ??
      originValidationResponse(request, localhostAllowedOrigins());
    if (refusal) {
      return refusal;
    }
    const isOlder = !isModernOnly && (await isLegacyRequest(request.clone()));
    return isOlder ? older(request) : modern.fetch(request);
  }

  http.createServer(getRequestListener(handle, { overrideGlobalObjects: false })).listen(port, '127.0.0.1');
}

function failed(status, code, message) {
  return Response.json({ jsonrpc: '2.0', id: null, error: { code, message } }, { status });
}

/// The messages on the streams of one session, for clients that resume.
class Events {
  #said = [];

  async storeEvent(stream, message) {
    this.#said.push({ stream, message });
    return `${this.#said.length}`;
  }

  async getStreamIdForEventId(id) {
    return this.#said[Number(id) - 1]?.stream;
  }

  async replayEventsAfter(last, { send }) {
    const stream = this.#said[Number(last) - 1]?.stream;
    for (const [at, event] of this.#said.entries()) {
      if (at >= Number(last) && event.stream === stream && Object.keys(event.message).length > 0) {
        await send(`${at + 1}`, event.message);
      }
    }
    return stream;
  }
}

const [port] = process.argv.slice(2).filter(argument => argument !== 'modern');
const isModernOnly = process.argv.at(-1) === 'modern';
if (port === undefined) {
  onStdio();
} else {
  overHttp(Number(port));
}
