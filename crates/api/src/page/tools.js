// Tools: how they do and how far they are trusted, the worst first.

import { act } from "./act.js";
import { post } from "./api.js";
import { button, h, list, name, pager, shown, table } from "./dom.js";
import { CLASSES, count, digits, span, state, toolName, when } from "./words.js";

const COLUMNS = [
  { title: "tool", class: "tool" },
  { title: "trust", class: "ended" },
  { title: "calls", class: "number" },
  { title: "failed", class: "number" },
  { title: "refused", class: "number" },
  { title: "works", class: "number" },
  { title: "p95", class: "number" },
  { title: "last", class: "when" },
];
const TRUST = ["trusted", "recovering", "escalated", "blocked"];

let last = { tools: [], trust: [] };
let parts;
const pages = pager(25, () => draw());

export function drawTools({ tools, trust }) {
  last = { tools, trust };
  draw();
}

function build() {
  const body = document.querySelector("#trust .body");
  const filter = h("input", { type: "search", placeholder: "name of a tool", "aria-label": "Filter tools", spellcheck: "false", autocomplete: "off" });
  const lost = h("ul", { class: "lost" });
  const rows = table(COLUMNS, "Tools, the worst first");
  const empty = h("p", { class: "empty" });
  filter.addEventListener("input", () => {
    pages.first();
    draw();
  });
  body.append(lost, h("p", { class: "line" }, filter), rows.element, empty, pages.place);
  parts = { filter, lost, rows, empty };
}

const badness = (tool) => TRUST.indexOf(tool.trust.toLowerCase()) * 10 + (tool.breaker === "CLOSED" ? 0 : 5) + (tool.calls > 0 ? tool.failures / tool.calls : 0);

function draw() {
  if (!parts) build();
  list(parts.lost, last.trust, (entry) => [entry.scope, entry.plugin_name, entry.tool_name, entry.signature, entry.domain].join("\n"), lost);
  parts.lost.hidden = last.trust.length === 0;
  const word = parts.filter.value.toLowerCase();
  const found = last.tools.filter((tool) => toolName(tool.tool).toLowerCase().includes(word));
  found.sort((a, b) => badness(b) - badness(a) || b.calls - a.calls || b.called - a.called);
  list(parts.rows.body, pages.cut(found, "tools"), (tool) => toolName(tool.tool), row);
  parts.rows.element.hidden = found.length === 0;
  parts.filter.parentElement.hidden = last.tools.length === 0;
  parts.empty.hidden = found.length > 0;
  parts.empty.textContent = last.tools.length === 0 ? "No tool is known yet. Each tool appears here with how well it does." : "No tool has this in its name.";
}

function row(tool) {
  const { score } = tool;
  const works = score ? h("span", { title: `${count(score.samples, "call")}; with 95 % confidence between ${percent(score.low)} and ${percent(score.high)}` }, percent(score.successRate)) : "–";
  return parts.rows.row(
    {},
    h("span", {}, name(toolName(tool.tool)), tool.class !== "unknown" && h("span", { class: "quiet" }, CLASSES[tool.class]), tool.breaker !== "CLOSED" && state(tool.breaker, `breaker ${tool.breaker === "HALF_OPEN" ? "probing" : "open"}`)),
    state(tool.trust.toLowerCase()),
    digits(tool.calls),
    digits(tool.failures),
    digits(tool.refused),
    works,
    score?.p95Ms === undefined ? "–" : span(score.p95Ms),
    tool.called ? when(tool.lastCallAtMs) : h("span", { class: "quiet" }, "not called"),
  );
}

const percent = (share) => `${Math.round(share * 100)} %`;

// One that is not simply trusted, and what ends that.
function lost(entry) {
  const tool = entry.tool_name && `${entry.plugin_name}/${entry.tool_name}`;
  const title = entry.scope === "domain" ? `all at ${entry.domain}` : (entry.signature ?? tool ?? "everything");
  const key = encodeURIComponent(entry.scope === "domain" ? `domain:${entry.domain}` : (tool ?? "*"));
  const whom = tool ?? title;
  const forgive = () => act(() => post(`/v1/trust/${key}/reset`), `${shown(whom)}: trusted again`);
  const recover = () => act(() => post(`/v1/trust/${key}/recover`), `${shown(whom)}: may earn its trust back`);
  const ends = [
    entry.state.toLowerCase() === "recovering" && `${entry.successes_since_recovery} of ${count(entry.successes_needed, "success", "successes")} towards trust`,
    entry.recovers_at && ["recovers ", when(entry.recovers_at)],
    entry.waits_for_approval && "recovers when you let it",
  ].filter(Boolean);
  return h(
    "li",
    { tabindex: "-1", "data-row": true },
    h("div", { class: "who" }, state(entry.state.toLowerCase()), name(title)),
    h("div", { class: "why" }, shown(entry.escalation_reason ?? `${count(entry.failures_in_window, "failure")} counted`), h("span", { class: "quiet" }, ends.flatMap((end) => [" · ", end]))),
    h("div", { class: "acts" }, entry.waits_for_approval && button("Let it recover", recover, { "data-hand": "recover", "aria-label": `Let ${shown(whom)} recover` }), button("Forgive", forgive, { "data-hand": "forgive", "aria-label": `Forgive ${shown(whom)}` })),
  );
}
