// Turns: several calls that depend on each other, the newest first.

import { get } from "./api.js";
import { button, fold, h, list, name, shown, table } from "./dom.js";
import { ofAll, ofSelected, tenantTag } from "./tenants.js";
import { open } from "./waterfall.js";
import { span, state, when } from "./words.js";

const USUAL = 20;
const MORE = 100;
const COLUMNS = [
  { title: "began", class: "when" },
  { title: "turn", class: "tool" },
  { title: "ended", class: "ended" },
  { title: "calls", class: "number" },
  { title: "took", class: "number" },
  { title: "session", class: "session" },
];

export const newestTurns = () => ofAll("/v1/traces", { limit: USUAL });
const folded = fold("turns", () => draw());

let last = { turns: [], next: null };
// Older turns that the user loaded, and their cursor.
let back = { turns: [], next: null };
let parts;

export function drawTurns({ turns }) {
  last = { ...turns, turns: ofSelected(turns.turns) };
  draw();
}

// Discards older turns when the selection of turns changes.
export function forgetTurns() {
  back = { turns: [], next: null };
}

function build() {
  const rows = table(COLUMNS, "Turns, the newest first");
  const empty = h("p", { class: "empty" }, "No turns yet. Submit calls that depend on each other as one turn with POST /v1/turns or the tool run_turn.");
  const older = button("Load older turns", lookBack, { class: "plain", "data-hand": "older" });
  document.querySelector("#turns .body").append(rows.element, empty, folded.place, h("p", {}, older));
  return { rows, empty, older };
}

const end = () => (back.turns.length > 0 ? back.next : last.next);

async function lookBack() {
  const page = await get(ofAll("/v1/traces", { limit: MORE, after: end() })).catch(() => null);
  if (!page) return;
  back = { turns: [...(back.turns.length > 0 ? back.turns : last.turns), ...ofSelected(page.turns)], next: page.next };
  draw();
}

const key = (turn) => `${turn.traceId} ${turn.startedAtMs}`;

function draw() {
  parts ??= build();
  // Refreshed turns are newer than the loaded older ones.
  const all = [...new Map([...back.turns, ...last.turns].map((turn) => [key(turn), turn])).values()];
  all.sort((a, b) => b.startedAtMs - a.startedAtMs);
  list(parts.rows.body, folded.cut(all, Boolean(end())), key, row);
  parts.rows.element.hidden = all.length === 0;
  parts.empty.hidden = all.length > 0;
  parts.older.hidden = !end();
}

function row(turn) {
  const label = turn.turnId ?? turn.traceId;
  const opened = button(name(label), () => open(turn.traceId), { class: "link", "data-hand": "open", "aria-label": `Open turn ${shown(label)}` });
  const ended = h(
    "span",
    {},
    state(turn.status ?? "running"),
    turn.escalated && state("attention", "needs attention"),
    turn.summary && h("span", { class: "summary" }, shown(turn.summary)),
  );
  const took = turn.endedAtMs === undefined ? h("span", { class: "quiet" }, "since ", when(turn.startedAtMs)) : span(turn.endedAtMs - turn.startedAtMs);
  return parts.rows.row({ class: turn.status ? undefined : "running" }, when(turn.startedAtMs), h("span", {}, opened, tenantTag(turn.tenant)), ended, String(turn.calls), took, name(turn.session, { title: shown(turn.session) }));
}
