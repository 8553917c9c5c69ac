// The dialog of one tool: trust, circuit breaker, failures and last calls.

import { get, query } from "./api.js";
import { breakerRow } from "./breakers.js";
import { ended, outcome, took } from "./calls.js";
import { button, dialog, fold, h, list, name, put, shown, table } from "./dom.js";
import { open as openCall } from "./story.js";
import { tenantTag } from "./tenants.js";
import { trustRow, works } from "./tools.js";
import { CLASSES, count, digits, span, state, toolName, when } from "./words.js";

const FAILURES = 100;
const CALLS = 50;
const FAILURE_COLUMNS = [
  { title: "when", class: "when" },
  { title: "severity", class: "severity" },
  { title: "message", class: "message" },
  { title: "HTTP", class: "number" },
  { title: "retries", class: "number" },
  { title: "arguments and context", class: "arguments" },
];
const MODEL_COLUMNS = [
  { title: "model", class: "tool" },
  { title: "succeeds", class: "number" },
  { title: "calls", class: "number" },
  { title: "p95", class: "number" },
];
const CALL_COLUMNS = [
  { title: "when", class: "when" },
  { title: "ended", class: "ended" },
  { title: "attempts", class: "number" },
  { title: "took", class: "number" },
];

// The open dialog, for refreshes.
let current;

// The name of a tool as a button that opens its dialog.
export function toolButton({ namespace, tool }, tenant) {
  const label = toolName({ namespace, tool });
  return button(name(label), () => openTool({ namespace, tool }, tenant), { class: "link", "data-hand": "open", "aria-label": `Tool ${shown(label)}` });
}

// Refreshes an open dialog. Called with each refresh of the page.
export async function followTool() {
  if (!current?.place.isConnected || !document.getElementById("dialog").open) return;
  const { place, tool, tenant, draw } = current;
  const data = await loadTool(tool, tenant).catch(() => null);
  if (data && place.isConnected) draw(data);
}

async function openTool(tool, tenant) {
  let data;
  try {
    data = await loadTool(tool, tenant);
  } catch (error) {
    dialog("Tool", h("p", {}, `This tool cannot be shown: ${error.message}`));
    return;
  }
  const page = build(tool, tenant);
  current = page;
  dialog(name(toolName(tool)), page.place);
  page.draw(data);
}

// Requests all data of a tool for this tenant.
async function loadTool(tool, tenant) {
  const label = toolName(tool);
  const [tools, trust, breakers, failures, history, models] = await Promise.all([
    get(query("/v1/tools", { prefix: label, tenant })),
    get(query("/v1/trust", { tool: label, tenant })),
    get(query("/v1/breakers", { tool: label, tenant })),
    get(query(`/v1/tools/${encodeURIComponent(label)}/failures`, { tenant, limit: FAILURES })),
    get(query("/v1/history", { tool: label, tenant, limit: CALLS })),
    get(query("/v1/models", { tool: label, tenant })),
  ]);
  // Without a tenant, the API returns failures and calls of all tenants.
  const own = (rows) => rows.filter((row) => row.tenant === tenant);
  return {
    view: tools.tools.find((one) => toolName(one.tool) === label),
    trust: trust.trust.map((entry) => ({ ...entry, tenant })),
    breakers: breakers.breakers.map((breaker) => ({ ...breaker, tenant })),
    failures: own(failures.failures),
    olderFailures: Boolean(failures.next),
    calls: own(history.calls).map(ended),
    olderCalls: Boolean(history.next),
    models: models.models,
  };
}

function build(tool, tenant) {
  const head = h("div", {});
  const trust = h("ul", { class: "lost" });
  const trusted = h("p", {}, state("trusted"), " ", h("span", { class: "quiet" }, "Calls run without approval."));
  const breakers = h("ul", { class: "breakers" });
  const noBreaker = h("p", { class: "empty" }, "No call was counted yet, so its circuit breaker is closed.");
  const failures = table(FAILURE_COLUMNS, "Failures, the newest first");
  const noFailures = h("p", { class: "empty" }, "No failures are recorded.");
  const calls = table(CALL_COLUMNS, "Calls, the newest first");
  const models = table(MODEL_COLUMNS, "Models that call it");
  const noModels = h("p", { class: "empty" }, "No call named its model.");
  const noCalls = h("p", { class: "empty" }, "No calls are recorded.");
  let last;
  const foldedFailures = fold("failures", () => draw(last));
  const foldedModels = fold("models", () => draw(last));
  const foldedCalls = fold("calls", () => draw(last));
  const part = (id, title, ...children) => h("section", { class: `part ${id}`, "aria-label": title }, h("h3", {}, title), ...children);
  const place = h(
    "div",
    { class: "story tool-page" },
    head,
    part("trust", "Trust", trusted, trust),
    part("breaker", "Circuit breaker", noBreaker, breakers),
    part("failures", "Failures", failures.element, noFailures, foldedFailures.place),
    part("models", "Models", models.element, noModels, foldedModels.place),
    part("calls", "Last calls", calls.element, noCalls, foldedCalls.place),
  );
  function draw(data) {
    last = data;
    put(head, [data.view, tenant], () => [numbers(data.view), tenantTag(tenant)]);
    list(trust, data.trust, (entry) => [entry.scope, entry.signature, entry.domain].join("\n"), (entry) => trustRow(entry, true));
    trusted.hidden = data.trust.length > 0;
    list(breakers, data.breakers, (breaker) => breaker.key, (breaker) => breakerRow(breaker, true));
    noBreaker.hidden = data.breakers.length > 0;
    list(failures.body, foldedFailures.cut(data.failures, data.olderFailures), (failure) => `${failure.atMs} ${failure.requestId} ${failure.message}`, (failure) => failed(failures, failure));
    failures.element.hidden = data.failures.length === 0;
    noFailures.hidden = data.failures.length > 0;
    list(models.body, foldedModels.cut(data.models), ({ model }) => String(model), (one) => scored(models, one));
    models.element.hidden = data.models.length === 0;
    noModels.hidden = data.models.length > 0;
    list(calls.body, foldedCalls.cut(data.calls, data.olderCalls), (call) => `${call.id} ${call.at}`, (call) => called(calls, call));
    calls.element.hidden = data.calls.length === 0;
    noCalls.hidden = data.calls.length > 0;
  }
  return { place, tool, tenant, draw };
}

function numbers(view) {
  if (!view) return null;
  const facts = [
    ["kind", CLASSES[view.class] ?? view.class],
    ["calls", digits(view.calls)],
    ["failed", digits(view.failures)],
    ["refused", digits(view.refused)],
    ["succeeds", works(view.score)],
    ["p95", view.score?.p95Ms === undefined ? "–" : span(view.score.p95Ms)],
    ["last call", view.called ? when(view.lastCallAtMs) : "not called"],
  ];
  return h("dl", { class: "facts" }, facts.map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, value))));
}

function failed(rows, failure) {
  const moment = failure.requestId
    ? button(when(failure.atMs), () => openCall(failure.requestId, failure.atMs), { class: "link", "data-hand": "open", "aria-label": `Open the call that failed with: ${shown(failure.message)}` })
    : when(failure.atMs);
  const facts = [...Object.entries(failure.argumentSummary ?? {}), ...Object.entries(failure.context ?? {})];
  const summary = facts.map(([label, value]) => h("span", { class: "argument" }, `${shown(label)}: `, name(typeof value === "string" ? value : JSON.stringify(value))));
  return rows.row(
    {},
    moment,
    h("span", {}, shown(failure.severity.replaceAll("_", " ")), h("span", { class: "quiet block error-type" }, shown(failure.errorType))),
    h("span", {}, shown(failure.message)),
    failure.httpStatus === undefined ? "–" : String(failure.httpStatus),
    h("span", { title: count(failure.retries, "retry", "retries") }, String(failure.retries)),
    summary.length > 0 ? h("span", {}, summary) : "–",
  );
}

// The score of one model with the tool. Models beyond the limit are combined.
function scored(rows, one) {
  return rows.row({}, one.model === null ? "other models" : name(one.model), works(one), digits(one.samples), one.p95Ms === undefined ? "–" : span(one.p95Ms));
}

function called(rows, call) {
  const moment = button(when(call.at), () => openCall(call.id, call.at), { class: "link", "data-hand": "open", "aria-label": `Open the call ${shown(call.id)}` });
  return rows.row({}, moment, outcome(call), String(call.attempts), took(call));
}
