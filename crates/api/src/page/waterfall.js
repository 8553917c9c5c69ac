// The dialog of one turn: timing, dependencies, errors and outcomes of its calls.
//
// `steadfast trace` draws the same: crates/cli/src/support/waterfall.rs.

import { get } from "./api.js";
import { button, dialog, h, list, name, put, s, shown } from "./dom.js";
import { open as openCall } from "./story.js";
import { count, now, span, state, tone, when } from "./words.js";

// The initial number of rows, and the number of rows added by the user.
const ROWS = 100;
const STEP = 200;
const AGAIN = 1000;
// The process of a turn without an end and without events for this time may have died.
const SILENT = 600_000;

export async function open(id) {
  let story;
  try {
    story = await get(`/v1/traces/${encodeURIComponent(id)}`);
  } catch (error) {
    dialog("Turn", h("p", {}, `This turn cannot be shown: ${error.message}`));
    return;
  }
  show(story);
}

// The turn of this call, if it is stored.
export async function turnOf(request, turn) {
  // The request ids of a turn begin with its trace id; the name of a turn may have been used again since.
  const trace = /^([0-9a-f]{32})\.\d+$/.exec(request)?.[1];
  for (const id of [trace, turn]) {
    const story = id && (await get(`/v1/traces/${encodeURIComponent(id)}`).catch(() => null));
    if (story?.spans.some((one) => one.requestId === request)) return story;
  }
  return null;
}

export const label = ({ turn }) => `Turn ${turn.turnId ?? turn.traceId}`;

export function show(story) {
  const head = h("div", { class: "head" });
  const falls = h("div", { class: "falls" });
  const details = h("div", {});
  const place = h("div", { class: "story turn" }, head, falls, h("h3", {}, "About it"), details);
  dialog(name(label(story)), place);
  const places = new Map();
  const draw = () => {
    put(head, [story.turn, silence(story)], () => drawHead(story));
    const parts = submissions(story);
    list(falls, parts.map(({ root, from }) => ({ id: root.spanId, title: parts.length > 1 && root.name, from })), (part) => part.id, (part) => {
      places.set(part.id, new Part(part));
      return places.get(part.id).element;
    });
    for (const part of parts) places.get(part.root.spanId).draw(part);
    put(details, story.turn, () => drawDetails(story.turn));
  };
  draw();
  void follow();

  // Refreshes the dialog while the turn runs and the page is visible. Long turns are requested less often.
  async function follow() {
    while (isOpen(story) && place.isConnected) {
      const began = performance.now();
      await new Promise((later) => setTimeout(later, document.hidden ? 5 * AGAIN : AGAIN));
      if (!place.isConnected || !document.getElementById("dialog").open) return;
      story = (await get(`/v1/traces/${encodeURIComponent(story.turn.traceId)}`).catch(() => null)) ?? story;
      if (!place.isConnected) return;
      draw();
      const took = performance.now() - began - AGAIN;
      if (took > 200) await new Promise((later) => setTimeout(later, 5 * took));
    }
  }
}

const isOpen = ({ turn }) => turn.endedAtMs === undefined;
const ms = (iso) => Date.parse(iso);

// The time since the last event of a turn without an end, if that is long.
function silence(story) {
  const newest = Math.max(story.turn.startedAtMs, ...story.events.slice(-100).map((event) => ms(event.timestamp)));
  return isOpen(story) && now() - newest >= SILENT ? now() - newest : undefined;
}

function drawHead(story) {
  const { turn } = story;
  const silent = silence(story);
  return [
    h(
      "p",
      { class: "outcome" },
      state(turn.status ?? "running"),
      turn.endedAtMs === undefined ? h("span", {}, "began ", when(turn.startedAtMs)) : h("span", {}, `after ${span(turn.endedAtMs - turn.startedAtMs)}`),
      h("span", {}, count(turn.calls, "call")),
      turn.escalated && state("attention", "needs attention"),
    ),
    turn.summary && h("p", { class: "summary" }, shown(turn.summary)),
    silent !== undefined && h("p", { class: "warning" }, `No events for ${span(silent)}: it still runs, or its process is gone.`),
  ];
}

function drawDetails(turn) {
  const rows = [
    ["began", when(turn.startedAtMs)],
    ["session", name(turn.session)],
    ["actor", name(turn.actor)],
    ["tenant", turn.tenant && name(turn.tenant)],
    ["trace", h("code", {}, turn.traceId)],
  ];
  return h("dl", { class: "details" }, rows.filter(([, value]) => value).map(([what, value]) => [h("dt", {}, what), h("dd", {}, value)]));
}

// The submissions of a turn. Most traces have one. A turn that was resubmitted, or that has the trace of its caller, has
// several, each with its own time scale.
function submissions({ turn, spans, events }) {
  const roots = spans.filter((one) => !one.callId).sort((a, b) => ms(a.startedAt) - ms(b.startedAt));
  // If the first event is no longer stored, the summary is used.
  if (roots.length === 0) roots.push({ spanId: "", name: "turn", startedAt: new Date(turn.startedAtMs).toISOString() });
  const byTime = (at) => Math.max(0, roots.findLastIndex((root) => ms(root.startedAt) <= ms(at)));
  const places = new Map(roots.map((root, at) => [root.spanId, at]));
  const ofSpan = new Map(spans.map((one) => [one.spanId, places.get(one.callId ? one.parentSpanId : one.spanId) ?? byTime(one.startedAt)]));
  const parts = roots.map((root) => ({ root, spans: [], events: [] }));
  for (const one of spans) if (one.callId) parts[ofSpan.get(one.spanId)].spans.push(one);
  for (const event of events) parts[ofSpan.get(event.spanId) ?? byTime(event.timestamp)].events.push(event);
  return parts.map(({ root, spans, events }, at) => {
    const isLast = at === parts.length - 1;
    const ended = root.endedAt ? ms(root.endedAt) : isLast ? turn.endedAtMs : undefined;
    const runs = ended === undefined && isLast;
    const known = [...spans.map((one) => ms(one.endedAt ?? one.startedAt)), ...events.map((event) => ms(event.timestamp))].reduce((a, b) => Math.max(a, b), ms(root.startedAt));
    // A span without an end lasts until its last known event.
    const until = runs && now() - known < SILENT ? now() : known;
    return { root, from: ms(root.startedAt), to: Math.max(ended ?? until, known), runs, calls: turn.calls, rows: rows(spans, events), events };
  });
}

// The rows of one submission by start time; calls that never ran by the time of that decision.
function rows(spans, events) {
  const all = spans.map((one) => ({ id: one.spanId, call: one.callId, tool: one.name, span: one, from: ms(one.startedAt), events: [] }));
  const ofSpan = new Map(all.map((row) => [row.id, row]));
  const ofCall = new Map(all.map((row) => [row.call, row]));
  // The event about a default or an alternative comes before the start of the tool.
  const before = new Map();
  for (const event of events) {
    const row = ofSpan.get(event.spanId);
    if (row) {
      row.events.push(...(before.get(event.callId) ?? []), event);
      before.delete(event.callId);
    } else if (event.callId) before.set(event.callId, [...(before.get(event.callId) ?? []), event]);
  }
  for (const [call, events] of before) {
    const row = ofCall.get(call);
    if (row) row.events.push(...events);
    else all.push({ id: `call ${call}`, call, tool: `${events[0].toolNamespace}/${events[0].toolId}`, from: ms(events[0].timestamp), events });
  }
  const place = (row) => row.events[0]?.sequence ?? 0;
  return all.sort((a, b) => a.from - b.from || place(a) - place(b));
}

const isFinal = (event) => event.decision !== "RETRY";
const FAILURES = ["ToolError", "ToolTimeout"];

// The outcome of a row, from its last event.
function ended({ span: one, events }, runs) {
  const restored = events.some((event) => event.eventType === "CallRestored");
  for (const event of events.toReversed()) {
    const outcome = {
      ToolSucceeded: restored ? "restored" : "succeeded",
      ToolError: isFinal(event) && "error",
      ToolTimeout: isFinal(event) && "timeout",
      ToolSkipped: "skipped",
      ToolCancelled: "stopped",
      ToolLeftRunning: "left_running",
    }[event.eventType];
    if (outcome) return outcome;
  }
  if (one && !one.endedAt) return runs ? "running" : "broke_off";
  return "ended";
}

// Other facts about a row.
function notes({ span: one, events }) {
  const texts = [];
  const of = (ids) => ids.map((id, at) => [at > 0 && ", ", name(id)]);
  if (one?.dependsOn?.length > 0) texts.push(["after ", of(one.dependsOn)]);
  for (const event of events) {
    if (event.eventType === "ToolSkipped" && event.dependencyId) texts.push(["needs ", name(event.dependencyId)]);
    if (event.eventType === "DefaultUsed") texts.push(["default for ", name(event.dependencyId)]);
    if (event.eventType === "AlternativeUsed") texts.push("alternative");
  }
  const retries = Math.max(0, ...events.map((event) => event.retryCount ?? 0));
  if (retries > 0) texts.push(`${retries + 1} attempts`);
  return texts;
}

// The container of one submission.
class Part {
  constructor({ title, from }) {
    this.limits = { rows: ROWS, events: ROWS };
    this.scale = h("span", { class: "ticks" });
    this.rows = h("ol", { class: "rows" });
    this.events = h("ol", { class: "steps" });
    this.more = { rows: h("p", {}), events: h("p", {}) };
    this.rest = h("p", { class: "quiet rest", hidden: true });
    this.element = h(
      "section",
      { class: "part" },
      title && h("h3", {}, name(title), " ", h("span", { class: "quiet" }, when(from))),
      h("div", { class: "waterfall" }, h("div", { class: "scale quiet", "aria-hidden": "true" }, h("span", {}), this.scale, h("span", {})), this.rows, this.rest),
      this.more.rows,
      h("h3", {}, "Step by step"),
      this.events,
      this.more.events,
    );
  }

  draw(part) {
    const { from, to, runs } = part;
    const total = Math.max(1, to - from);
    put(this.scale, total, () => [0, total / 2, total].map((at) => h("span", {}, at === 0 ? "0" : span(at))));
    const rows = part.rows.slice(0, this.limits.rows).map((row) => ({ row, from, to, runs }));
    list(this.rows, rows, ({ row }) => row.id, ({ row }) => drawRow(row, part, total));
    list(this.events, part.events.slice(0, this.limits.events), (event) => `${event.timestamp} ${event.sequence}`, (event) => sentence(event, from));
    const waiting = runs ? part.calls - new Set(part.rows.map((row) => row.call)).size : 0;
    this.rest.hidden = waiting <= 0;
    this.rest.textContent = `${count(waiting, "call has", "calls have")} not begun`;
    for (const what of ["rows", "events"]) this.drawMore(what, part);
  }

  // Long lists are shown in parts.
  drawMore(what, part) {
    const [seen, all] = [this.limits[what], part[what].length];
    const add = () => {
      this.limits[what] += STEP;
      this.draw(part);
    };
    this.more[what].hidden = all <= seen;
    put(this.more[what], [seen, all], () => [all > seen && button(`Show ${Math.min(STEP, all - seen)} more of ${all}`, add, { class: "plain", "data-hand": `more ${what}` })]);
  }
}

function drawRow(row, part, total) {
  const how = ended(row, part.runs);
  const request = row.span?.requestId;
  const call = name(row.call);
  const what = request ? button(call, () => openCall(request, row.from), { class: "link", "data-hand": `call ${row.id}`, "aria-label": `Open call ${shown(row.call)}, ${shown(row.tool)}` }) : call;
  const took = row.span && span((row.span.endedAt ? ms(row.span.endedAt) : part.to) - row.from);
  return h(
    "li",
    { class: tone(how) },
    h("span", { class: "what" }, h("span", { class: "call" }, what), name(row.tool, { class: "name quiet" })),
    lane(row, part, total, how),
    h("span", { class: "how" }, state(how), took && h("span", { class: "took" }, took), notes(row).map((note) => h("span", { class: "quiet" }, note))),
  );
}

// The time of one row as a bar: running, waiting for a retry (thin), failed (cross), retried (edge).
function lane(row, part, total, how) {
  const share = (at) => Math.max(0, Math.min(100, (100 * (at - part.from)) / total));
  const percent = (at) => `${share(at).toFixed(2)}%`;
  const wide = (from, to) => `${Math.max(0, share(to) - share(from)).toFixed(2)}%`;
  const until = row.span && (row.span.endedAt ? ms(row.span.endedAt) : part.to);
  const marks = [25, 50, 75].map((at) => s("line", { class: "grid", x1: `${at}%`, x2: `${at}%`, y1: 0, y2: 22 }));
  if (row.span) {
    // A span of zero length stays visible.
    marks.push(s("rect", { class: "least", x: percent(row.from), y: 5, width: 3, height: 12, transform: share(row.from) > 99 && "translate(-3)" }));
    marks.push(s("rect", { class: "bar", x: percent(row.from), y: 5, width: wide(row.from, until), height: 12, rx: 2 }));
  }
  const at = (event) => ms(event.timestamp);
  for (const event of row.events) {
    if (event.eventType !== "ToolRetry") continue;
    const next = Math.min(at(event) + (event.delayMs ?? 0), until ?? part.to);
    marks.push(s("rect", { class: "pause", x: percent(at(event)), y: 4, width: wide(at(event), next), height: 14 }));
    marks.push(s("line", { class: "wait", x1: percent(at(event)), x2: percent(next), y1: 11, y2: 11 }));
    marks.push(s("line", { class: "again", x1: percent(next), x2: percent(next), y1: 3, y2: 19 }));
  }
  for (const event of row.events) {
    const x = Math.max(1, Math.min(99, share(at(event)))).toFixed(2);
    if (FAILURES.includes(event.eventType)) marks.push(s("svg", { class: "cross", x: `${x}%`, y: 11, overflow: "visible" }, s("title", {}, shown(event.sentence)), s("circle", { r: 6 }), s("path", { d: "M-3-3 3 3M-3 3 3-3" })));
    if (event.eventType === "ToolSkipped") marks.push(s("svg", { class: "skip-mark", x: `${x}%`, y: 11, overflow: "visible" }, s("circle", { r: 4 })));
  }
  const failed = row.events.filter((event) => FAILURES.includes(event.eventType)).length;
  const label = row.span ? `from +${span(row.from - part.from)} to +${span(until - part.from)}${failed > 0 ? `, ${count(failed, "attempt")} failed` : ""}` : "never ran";
  return s("svg", { class: `lane ${how}`, role: "img", "aria-label": label, height: 22 }, marks);
}

const SIGNS = {
  ToolError: ["bad", "■"],
  ToolTimeout: ["bad", "■"],
  TurnTimeout: ["bad", "■"],
  ToolSucceeded: ["good", "●"],
  CallRestored: ["good", "●"],
  ToolRetry: ["waiting", "↻"],
  ToolSkipped: ["waiting", "○"],
  ToolCancelled: ["waiting", "○"],
  TurnCancelled: ["waiting", "○"],
};

function sentence(event, from) {
  const [tone, sign] = SIGNS[event.eventType] ?? ["plain", "·"];
  return h(
    "li",
    { class: tone },
    h("span", { class: "offset" }, `+${span(Math.max(0, ms(event.timestamp) - from))}`),
    h("span", { class: "sign", "aria-hidden": "true" }, sign),
    h("span", { class: "what" }, shown(event.sentence), event.callId && [" ", name(event.callId, { class: "name quiet" })]),
  );
}
