// Calls as they happen: those that run on top, then what became of the others.

import { get } from "./api.js";
import { button, h, list, name, pager, shown, table } from "./dom.js";
import { open } from "./story.js";
import { span, state, toolName, when } from "./words.js";

const USUAL = 100;
const DEEP = 1000;
const COLUMNS = [
  { title: "when", class: "when" },
  { title: "tool", class: "tool" },
  { title: "ended", class: "ended" },
  { title: "attempts", class: "number" },
  { title: "took", class: "number" },
  { title: "conversation", class: "session" },
];

let last = { running: [], history: [], next: null };
// What a person looked back for, and where that ended. What was newest then is in it, so that nothing is missing between.
let back = { calls: [], next: null };
let parts;
const pages = pager(50, () => draw());

// How many calls are asked for: who searches looks further back.
export const depth = () => (parts && (parts.search.value || parts.kind.value) ? DEEP : USUAL);

export function drawCalls({ running, history }) {
  last = { running, history: history.calls, next: history.next };
  draw();
}

function build() {
  const body = document.querySelector("#calls .body");
  const search = h("input", { type: "search", id: "search", placeholder: "tool, conversation, code, rule, id", "aria-label": "Search calls", spellcheck: "false", autocomplete: "off" });
  const kinds = [
    ["", "all"],
    ["failed", "failed or refused"],
    ["replayed", "replayed"],
    ["retried", "tried again"],
    ["running", "running"],
  ];
  const kind = h("select", { "aria-label": "Which calls" }, kinds.map(([value, said]) => h("option", { value }, said)));
  const rows = table(COLUMNS, "Calls, the newest first");
  const empty = h("p", { class: "empty" });
  const found = h("span", { class: "quiet", "aria-live": "polite" });
  const older = button("Look further back", lookBack, { class: "plain", "data-hand": "older" });
  body.append(h("p", { class: "line" }, search, kind, found), rows.element, empty, pages.place, h("p", {}, older));
  parts = { search, kind, rows, empty, found, older };
  let timer;
  const look = () => {
    pages.first();
    draw();
    clearTimeout(timer);
    // What lies further back is asked for when the person has paused.
    timer = setTimeout(async () => {
      if (depth() === DEEP) {
        const history = await get(`/v1/history?limit=${DEEP}`).catch(() => null);
        if (history) Object.assign(last, { history: history.calls, next: history.next });
      }
      draw();
    }, 200);
  };
  search.addEventListener("input", look);
  kind.addEventListener("change", look);
}

// Where what is shown ends; nothing if nothing is older.
const end = () => (back.calls.length > 0 ? back.next : last.next);

async function lookBack() {
  const page = await get(`/v1/history?limit=${DEEP}&after=${encodeURIComponent(end())}`).catch(() => null);
  if (!page) return;
  back = { calls: [...(back.calls.length > 0 ? back.calls : last.history), ...page.calls], next: page.next };
  draw();
}

// All calls that are known to be over, each once.
function over() {
  const each = (call) => [`${call.requestId} ${call.arrivedAtMs} ${call.tookMs}`, call];
  return [...new Map([...last.history, ...back.calls].map(each)).values()];
}

// Both kinds of call as one.
function unite({ running }, history) {
  const open = running.map((trace) => ({
    id: trace.requestId,
    at: trace.arrivedAtMs,
    tool: trace.tool,
    session: trace.session,
    status: "running",
    step: trace.steps.at(-1)?.text,
    attempts: trace.steps.filter((step) => step.kind === "attempt_started").length,
  }));
  const ended = history.map((facts) => ({
    id: facts.requestId,
    at: facts.arrivedAtMs,
    tool: facts.tool,
    session: facts.session,
    status: facts.code && facts.attempts.length === 0 && !facts.replayed ? "refused" : facts.status,
    code: facts.code,
    rule: facts.rule,
    model: facts.model,
    attempts: facts.attempts.length,
    took: facts.tookMs,
    replayed: facts.replayed,
  }));
  return [...open, ...ended.sort((a, b) => b.at - a.at)];
}

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
    const text = [toolName(call.tool), call.id, call.session, call.code, call.rule, call.status, call.model].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  };
  const found = all.filter((call) => KINDS[parts.kind.value](call) && fits(call));
  list(parts.rows.body, pages.cut(found, "calls"), (call) => `${call.id} ${call.at}`, row);
  parts.rows.element.hidden = found.length === 0;
  parts.empty.hidden = found.length > 0;
  parts.empty.textContent = all.length === 0 ? "No calls yet. Each call of a tool appears here the moment it comes." : "No call fits.";
  const whole = `${end() ? "the newest " : ""}${all.length}`;
  parts.found.textContent = words.length > 0 || parts.kind.value ? `${found.length} of ${whole}` : end() ? whole : "";
  parts.older.hidden = !end();
}

function row(call) {
  const label = toolName(call.tool);
  const opened = button(name(label), () => open(call.id, call.at), { class: "link", "data-hand": "open", "aria-label": `Open ${shown(label)}` });
  const ended = h(
    "span",
    {},
    state(call.status),
    call.code && call.status !== "circuit_open" && h("code", { class: "code" }, call.code),
    call.replayed && h("span", { class: "tag", title: "It got an earlier answer and did not run" }, "replayed"),
    call.attempts > 1 && call.status === "success" && h("span", { class: "tag", title: "It worked because it was tried again" }, "saved by a retry"),
    call.step && h("span", { class: "quiet" }, call.step),
  );
  const took = call.took === undefined ? h("span", { class: "quiet" }, "since ", when(call.at)) : span(call.took);
  return parts.rows.row({ class: call.status === "running" ? "running" : undefined }, when(call.at), opened, ended, String(call.attempts), took, call.session ? name(call.session, { title: shown(call.session) }) : "–");
}

