// Live calls: calls in flight first, then finished ones.

import { get } from "./api.js";
import { button, fold, h, list, name, shown, table } from "./dom.js";
import { open } from "./story.js";
import { ofAll, ofSelected, tenantTag } from "./tenants.js";
import { span, state, toolName, when } from "./words.js";

const USUAL = 100;
const DEEP = 1000;
const COLUMNS = [
  { title: "when", class: "when" },
  { title: "tool", class: "tool" },
  { title: "ended", class: "ended" },
  { title: "attempts", class: "number" },
  { title: "took", class: "number" },
  { title: "session", class: "session" },
];

let last = { running: [], history: [], next: null };
// Older calls that the user loaded, and their cursor. They include the newest calls of that time, so that there is no gap.
let back = { calls: [], next: null };
let parts;
const folded = fold("calls", () => draw());

// The number of requested calls: more for a search.
const depth = () => (parts && (parts.search.value || parts.kind.value) ? DEEP : USUAL);
export const newestCalls = () => ofAll("/v1/history", { limit: depth() });

export function drawCalls({ running, history }) {
  last = { running: ofSelected(running), history: ofSelected(history.calls), next: history.next };
  draw();
}

// Discards older calls when the selection of calls changes.
export function forgetCalls() {
  back = { calls: [], next: null };
}

function build() {
  const body = document.querySelector("#calls .body");
  const search = h("input", { type: "search", id: "search", placeholder: "tool, session, code, rule, id", "aria-label": "Search calls", spellcheck: "false", autocomplete: "off" });
  const kinds = [
    ["", "all"],
    ["failed", "failed or refused"],
    ["replayed", "replayed"],
    ["retried", "retried"],
    ["running", "running"],
  ];
  const kind = h("select", { "aria-label": "Which calls" }, kinds.map(([value, title]) => h("option", { value }, title)));
  const rows = table(COLUMNS, "Calls, the newest first");
  const empty = h("p", { class: "empty" });
  const found = h("span", { class: "quiet", "aria-live": "polite" });
  const older = button("Load older calls", lookBack, { class: "plain", "data-hand": "older" });
  body.append(h("p", { class: "line" }, search, kind, found), rows.element, empty, folded.place, h("p", {}, older));
  parts = { search, kind, rows, empty, found, older };
  let timer;
  const filter = () => {
    folded.first();
    draw();
    clearTimeout(timer);
    // Older calls are requested after a pause in typing.
    timer = setTimeout(async () => {
      if (depth() === DEEP) {
        const history = await get(newestCalls()).catch(() => null);
        if (history) Object.assign(last, { history: ofSelected(history.calls), next: history.next });
      }
      draw();
    }, 200);
  };
  search.addEventListener("input", filter);
  kind.addEventListener("change", filter);
}

// The cursor after the shown calls, or null if there are no older ones.
const end = () => (back.calls.length > 0 ? back.next : last.next);

async function lookBack() {
  const page = await get(ofAll("/v1/history", { limit: DEEP, after: end() })).catch(() => null);
  if (!page) return;
  back = { calls: [...(back.calls.length > 0 ? back.calls : last.history), ...ofSelected(page.calls)], next: page.next };
  draw();
}

// All known finished calls, each once.
function over() {
  const each = (call) => [`${call.requestId} ${call.arrivedAtMs} ${call.tookMs}`, call];
  return [...new Map([...last.history, ...back.calls].map(each)).values()];
}

// Merges calls in flight and finished calls.
function unite({ running }, history) {
  const open = running.map((trace) => ({
    id: trace.requestId,
    at: trace.arrivedAtMs,
    tool: trace.tool,
    session: trace.session,
    tenant: trace.tenant,
    status: "running",
    step: trace.steps.at(-1)?.text,
    attempts: trace.steps.filter((step) => step.kind === "attempt_started").length,
  }));
  return [...open, ...history.map(ended).sort((a, b) => b.at - a.at)];
}

// A finished call of the history.
export const ended = (facts) => ({
  id: facts.requestId,
  at: facts.arrivedAtMs,
  tool: facts.tool,
  session: facts.session,
  tenant: facts.tenant,
  status: facts.code && facts.attempts.length === 0 && !facts.replayed ? "refused" : facts.status,
  code: facts.code,
  rule: facts.rule,
  model: facts.model,
  attempts: facts.attempts.length,
  took: facts.tookMs,
  replayed: facts.replayed,
});

const KINDS = {
  "": () => true,
  failed: (call) => call.status !== "success" && call.status !== "running",
  replayed: (call) => call.replayed,
  retried: (call) => call.attempts > 1,
  running: (call) => call.status === "running",
};

function draw() {
  if (!parts) build();
  const words = parts.search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const all = unite(last, over());
  const fits = (call) => {
    const text = [toolName(call.tool), call.id, call.session, call.tenant, call.code, call.rule, call.status, call.model].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  };
  const found = all.filter((call) => KINDS[parts.kind.value](call) && fits(call));
  list(parts.rows.body, folded.cut(found, Boolean(end())), (call) => `${call.id} ${call.at}`, row);
  parts.rows.element.hidden = found.length === 0;
  parts.empty.hidden = found.length > 0;
  parts.empty.textContent = all.length === 0 ? "No calls yet. Each tool call appears here as soon as it arrives." : "No call matches.";
  const whole = `${end() ? "the newest " : ""}${all.length}`;
  parts.found.textContent = words.length > 0 || parts.kind.value ? `${found.length} of ${whole}` : end() ? whole : "";
  parts.older.hidden = !end();
}

function row(call) {
  const label = toolName(call.tool);
  const opened = button(name(label), () => open(call.id, call.at), { class: "link", "data-hand": "open", "aria-label": `Open ${shown(label)}` });
  const tool = h("span", {}, opened, tenantTag(call.tenant));
  return parts.rows.row({ class: call.status === "running" ? "running" : undefined }, when(call.at), tool, outcome(call), String(call.attempts), took(call), call.session ? name(call.session, { title: shown(call.session) }) : "–");
}

// The outcome or the progress of a call.
export function outcome(call) {
  return h(
    "span",
    {},
    state(call.status),
    call.code && call.status !== "circuit_open" && h("code", { class: "code" }, call.code),
    call.replayed && h("span", { class: "tag", title: "It returned a stored result and did not run" }, "replayed"),
    call.attempts > 1 && call.status === "success" && h("span", { class: "tag", title: "It succeeded because it was retried" }, "saved by a retry"),
    call.step && h("span", { class: "quiet" }, call.step),
  );
}

export const took = (call) => (call.took === undefined ? h("span", { class: "quiet" }, "since ", when(call.at)) : span(call.took));
