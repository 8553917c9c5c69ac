// What needs a person's answer, with all that is known about it, and the answer one click away.

import { act } from "./act.js";
import { post } from "./api.js";
import { button, h, list, name, shown } from "./dom.js";
import { count, state, toolName, when } from "./words.js";

const known = new Set();
let first = true;

export function drawApprovals({ approvals }) {
  const body = document.querySelector("#approvals .body");
  if (!body.firstChild) body.append(h("div", { class: "cards" }), h("p", { class: "empty" }, "Nothing waits. A call that a person must allow appears here, with what it wants to do."));
  const [cards, empty] = body.children;
  empty.hidden = approvals.length > 0;
  list(cards, approvals, (request) => request.id, card);
  announce(approvals);
}

function announce(approvals) {
  for (const request of approvals) {
    if (!known.has(request.id) && !first) {
      document.getElementById("heard").textContent = `New request: ${toolName(request.tool)} waits for your answer`;
    }
    known.add(request.id);
  }
  first = false;
}

function card(request) {
  const { prompt, tool } = request;
  const title = toolName(tool);
  const answer = (decision, said, more) => () => act(() => post(`/v1/approvals/${request.id}`, { decision, ...more }), `${shown(title)}: ${said}`);
  return h(
    "article",
    { class: `card ${request.blocked ? "bad" : "wait"}`, tabindex: "-1", "data-row": true, "aria-label": `Request: ${shown(title)}` },
    h(
      "header",
      {},
      h("h3", {}, name(title)),
      state(request.blocked ? "blocked" : "escalated", request.blocked ? "blocked: only you can allow it" : "asks first"),
      h("span", { class: "quiet" }, "asked ", when(request.asked_at), request.askers > 1 ? `, ${count(request.askers, "time")}` : "", ", dropped ", when(request.expires)),
    ),
    h("p", {}, shown(prompt.summary)),
    prompt.reason && ![prompt.summary, ...prompt.warnings].some((line) => line.includes(prompt.reason)) && h("p", { class: "quiet" }, shown(prompt.reason)),
    prompt.warnings.filter((warning) => warning !== prompt.summary).map((warning) => h("p", { class: "warning" }, shown(warning))),
    request.shown !== undefined && h("pre", { class: "sent", tabindex: "0", "aria-label": "What it was called with" }, shown(request.shown)),
    h(
      "p",
      { class: "quiet" },
      request.session && ["conversation ", name(request.session), " · "],
      prompt.failures > 0 && `${count(prompt.failures, "failure")} in ${prompt.window} · `,
      shown(prompt.recovery_hint ?? ""),
    ),
    h(
      "p",
      { class: "acts" },
      button("Approve once", answer("once", "approved once"), { class: "strong", "data-hand": "once", title: "a" }),
      !request.blocked && button("For this conversation", answer("session", "approved for this conversation"), { "data-hand": "session" }),
      !request.blocked && button("For an hour", answer("time", "approved for an hour", { for: "1h" }), { "data-hand": "hour" }),
      button("Deny", answer("deny", "denied"), { class: "danger", "data-hand": "deny", title: "d" }),
    ),
  );
}
