// Tools with their success rate and trust, the worst first.

import { act } from "./act.js";
import { post } from "./api.js";
import { button, fold, h, list, name, shown, table } from "./dom.js";
import { at, tenantTag } from "./tenants.js";
import { toolButton } from "./tool.js";
import { CLASSES, clock, count, digits, span, state, toolName, when } from "./words.js";

const COLUMNS = [
  { title: "tool", class: "tool" },
  { title: "trust", class: "ended" },
  { title: "calls", class: "number" },
  { title: "failed", class: "number" },
  { title: "refused", class: "number" },
  { title: "succeeds", class: "number" },
  { title: "p95", class: "number" },
  { title: "last", class: "when" },
];
const TRUST = ["trusted", "recovering", "escalated", "blocked"];

let last = { tools: [], trust: [] };
let parts;
const folded = fold("tools", () => draw());
const foldedTrust = fold("tools without full trust", () => draw());

export function drawTools({ tools, trust }) {
  last = { tools: once(tools), trust };
  draw();
}

// All tenants have the same tools: a tool that one tenant called is not listed again as not called.
function once(tools) {
  const listed = new Set(tools.filter((tool) => tool.called).map((tool) => toolName(tool.tool)));
  return tools.filter((tool) => {
    const isNew = !listed.has(toolName(tool.tool));
    listed.add(toolName(tool.tool));
    return tool.called || isNew;
  });
}

function build() {
  const body = document.querySelector("#trust .body");
  const filter = h("input", { type: "search", placeholder: "name of a tool", "aria-label": "Filter tools", spellcheck: "false", autocomplete: "off" });
  const lost = h("ul", { class: "lost" });
  const rows = table(COLUMNS, "Tools, the worst first");
  const empty = h("p", { class: "empty" });
  filter.addEventListener("input", () => {
    folded.first();
    draw();
  });
  body.append(lost, foldedTrust.place, h("p", { class: "line" }, filter), rows.element, empty, folded.place);
  parts = { filter, lost, rows, empty };
}

const badness = (tool) => TRUST.indexOf(tool.trust.toLowerCase()) * 10 + (tool.breaker === "CLOSED" ? 0 : 5) + (tool.calls > 0 ? tool.failures / tool.calls : 0);

function draw() {
  if (!parts) build();
  list(parts.lost, foldedTrust.cut(last.trust), (entry) => [entry.tenant, entry.scope, entry.pluginName, entry.toolName, entry.signature, entry.domain].join("\n"), (entry) => trustRow(entry));
  parts.lost.hidden = last.trust.length === 0;
  const word = parts.filter.value.toLowerCase();
  const found = last.tools.filter((tool) => toolName(tool.tool).toLowerCase().includes(word));
  found.sort((a, b) => badness(b) - badness(a) || b.calls - a.calls || b.called - a.called);
  list(parts.rows.body, folded.cut(found), (tool) => `${tool.tenant ?? ""}\n${toolName(tool.tool)}`, row);
  parts.rows.element.hidden = found.length === 0;
  parts.filter.parentElement.hidden = last.tools.length === 0;
  parts.empty.hidden = found.length > 0;
  parts.empty.textContent = last.tools.length === 0 ? "No tool is known yet. Each tool appears here with its success rate." : "No tool has this in its name.";
}

function row(tool) {
  const { score } = tool;
  return parts.rows.row(
    {},
    h("span", {}, toolButton(tool.tool, tool.tenant), tenantTag(tool.tenant), tool.class !== "unknown" && h("span", { class: "quiet" }, CLASSES[tool.class]), tool.breaker !== "CLOSED" && state(tool.breaker, `circuit breaker ${tool.breaker === "HALF_OPEN" ? "probing" : "open"}`)),
    state(tool.trust.toLowerCase()),
    digits(tool.calls),
    digits(tool.failures),
    digits(tool.refused),
    works(score),
    score?.p95Ms === undefined ? "–" : span(score.p95Ms),
    tool.called ? when(tool.lastCallAtMs) : h("span", { class: "quiet" }, "not called"),
  );
}

// The share of calls that succeed.
export function works(score) {
  return score ? h("span", { title: `${count(score.samples, "call")}; with 95 % confidence between ${percent(score.low)} and ${percent(score.high)}` }, percent(score.successRate)) : "–";
}

const percent = (share) => `${Math.round(share * 100)} %`;

// An entry without full trust: reason, end and recovery. `isNamed` is true if its tool is already shown above.
export function trustRow(entry, isNamed = false) {
  const tool = entry.toolName && { namespace: entry.pluginName, tool: entry.toolName };
  const label = tool && toolName(tool);
  const title = entry.scope === "domain" ? `all at ${entry.domain}` : (entry.signature ?? label ?? "everything");
  const key = encodeURIComponent(entry.scope === "domain" ? `domain:${entry.domain}` : (label ?? "*"));
  const whom = shown(label ?? title);
  const restore = () => act(() => post(at(`/v1/trust/${key}/reset`, entry.tenant)), `${whom}: trusted again`);
  const recover = () => act(() => post(at(`/v1/trust/${key}/recover`, entry.tenant)), `${whom}: recovering`);
  const about = title === label ? !isNamed && toolButton(tool, entry.tenant) : [name(title), !isNamed && tool && toolButton(tool, entry.tenant)];
  return h(
    "li",
    { tabindex: "-1", "data-row": true },
    h("div", { class: "who" }, state(entry.state.toLowerCase()), about, !isNamed && tenantTag(entry.tenant)),
    h("div", { class: "why" }, shown(entry.escalationReason ?? `${count(entry.failuresInWindow, "failure")} in ${span(entry.windowMs)}`), h("span", { class: "quiet block" }, until(entry))),
    h(
      "div",
      { class: "acts" },
      entry.waitsForApproval && button("Let it recover", recover, { "data-hand": "recover", "aria-label": `Let ${whom} recover` }),
      button("Restore trust", restore, { "data-hand": "restore", "aria-label": `Restore trust in ${whom}` }),
    ),
  );
}

// The time until which it needs approval, and the way to restore trust.
function until(entry) {
  const then = `then ${count(entry.successesNeeded, "successful call restores", "successful calls restore")} trust`;
  if (entry.state.toLowerCase() === "blocked") return "blocked until you restore trust";
  if (entry.state.toLowerCase() === "recovering") return `${entry.successesSinceRecovery} of ${count(entry.successesNeeded, "successful call", "successful calls")} needed to restore trust`;
  if (entry.waitsForApproval) return `needs approval until you let it recover; ${then}`;
  return entry.recoversAt ? ["needs approval until ", clock(entry.recoversAt), " (", when(entry.recoversAt), `); ${then}`] : then;
}
