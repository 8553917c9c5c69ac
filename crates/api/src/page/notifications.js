// Notifications, newest first: changed trust, pending approvals, unknown outcomes.

import { fold, h, list, shown } from "./dom.js";
import { ofSelected, tenantTag } from "./tenants.js";
import { toolButton } from "./tool.js";
import { state, when } from "./words.js";

// The maximum number of notifications on this page.
const MOST = 200;
const LEVELS = { info: ["info", "info"], warn: ["attention", "warning"], error: ["trouble", "error"] };

let received = [];
let parts;
const folded = fold("notifications", () => drawNotifications());

// Stores a notification with the id of its event.
export function addNotification(id, line) {
  if (received.some((one) => one.id === id)) return;
  received = [{ id, at: Date.parse(line.time), tenant: line.tenantId, ...line }, ...received].toSorted((a, b) => b.at - a.at).slice(0, MOST);
}

export function drawNotifications() {
  if (!parts) {
    const body = document.querySelector("#notifications .body");
    const rows = h("ul", { class: "notifications" });
    const empty = h("p", { class: "empty" }, "No notifications yet. Changes of trust, requests for approval and unknown outcomes appear here as they happen.");
    body.append(rows, empty, folded.place);
    parts = { rows, empty };
  }
  const all = ofSelected(received);
  list(parts.rows, folded.cut(all), (one) => one.id, row);
  parts.empty.hidden = all.length > 0;
}

function row(one) {
  const [which, word] = LEVELS[one.level] ?? LEVELS.info;
  const tool = one.toolName && { namespace: one.toolNamespace, tool: one.toolName };
  return h(
    "li",
    { tabindex: "-1", "data-row": true },
    h("div", { class: "who" }, state(which, word), h("span", { class: "quiet" }, when(one.at)), tool && toolButton(tool, one.tenant), tenantTag(one.tenant)),
    h("p", { class: "message" }, shown(one.message)),
  );
}
