// Calls that wait for approval, with all that is known about them, and the answer one click away.

import { act } from "./act.js";
import { post } from "./api.js";
import { button, fold, h, list, name, shown } from "./dom.js";
import { at, tenantTag } from "./tenants.js";
import { toolButton } from "./tool.js";
import { count, state, toolName, when } from "./words.js";

const known = new Set();
let first = true;

let last = [];
const folded = fold("requests", () => draw());

export function drawApprovals({ approvals }) {
  last = approvals;
  draw();
  announce(approvals);
}

const key = (request) => `${request.tenant ?? ""}\n${request.id}`;

function draw() {
  const body = document.querySelector("#approvals .body");
  if (!body.firstChild) body.append(h("div", { class: "cards" }), h("p", { class: "empty" }, "No call waits for approval. A call that needs approval appears here, with its arguments."), folded.place);
  const [cards, empty] = body.children;
  empty.hidden = last.length > 0;
  list(cards, folded.cut(last.toSorted((a, b) => a.askedAt - b.askedAt)), key, card);
}

function announce(approvals) {
  for (const request of approvals) {
    if (!known.has(key(request)) && !first) {
      document.getElementById("announcement").textContent = `New request: ${toolName(request.tool)} waits for approval`;
    }
    known.add(key(request));
  }
  first = false;
}

// The warnings of a prompt that are not in its reason or tool name, each once.
function others({ reason, warnings, failures, recoveryHint: hint }) {
  const isCounted = (line) => line.startsWith("counted failures:") && reason.includes(String(failures));
  const isNew = (line) => line !== hint && !line.includes(reason) && !reason.includes(line) && !isCounted(line);
  return [...new Set(warnings)].filter(isNew);
}

// The summary of a prompt without the parts that the card shows anyway: the tool, and that approval is needed.
const headline = (summary, title) => summary.replace(`${title} `, "").replace(/ and needs approval$|^needs approval$/, "");

function card(request) {
  const { prompt, tool } = request;
  const title = toolName(tool);
  const path = at(`/v1/approvals/${request.id}`, request.tenant);
  const answer = (decision, label, more) => () => act(() => post(path, { decision, ...more }), `${shown(title)}: ${label}`);
  const head = headline(prompt.summary, title);
  return h(
    "article",
    { class: `card ${request.blocked ? "bad" : "wait"}`, tabindex: "-1", "data-row": true, "aria-label": `Request: ${shown(title)}` },
    h(
      "header",
      {},
      h("h3", {}, toolButton(tool, request.tenant)),
      tenantTag(request.tenant),
      head && state(request.blocked ? "blocked" : "escalated", shown(head)),
      h("span", { class: "quiet" }, "asked ", when(request.askedAt), request.askers > 1 ? `, ${count(request.askers, "time")}` : "", ", expires ", when(request.expires)),
    ),
    h("p", { class: "reason" }, shown(prompt.reason)),
    others(prompt).map((line) => h("p", { class: "warning" }, shown(line))),
    request.shown !== undefined && h("pre", { class: "sent", tabindex: "0", "aria-label": "Its arguments" }, shown(request.shown)),
    (request.session || prompt.recoveryHint) &&
      h("p", { class: "quiet" }, request.session && ["session ", name(request.session)], request.session && prompt.recoveryHint && " · ", shown(prompt.recoveryHint ?? "")),
    h(
      "p",
      { class: "acts" },
      button("Approve once", answer("once", "approved once"), { class: "strong", "data-hand": "once", title: "a" }),
      !request.blocked && button("For this session", answer("session", "approved for this session"), { "data-hand": "session" }),
      !request.blocked && button("For an hour", answer("time", "approved for an hour", { for: "1h" }), { "data-hand": "hour" }),
      button("Deny", answer("deny", "denied"), { class: "danger", "data-hand": "deny", title: "d" }),
    ),
  );
}
