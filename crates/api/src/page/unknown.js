// Calls whose outcome is unknown, and the two buttons that resolve one.

import { act } from "./act.js";
import { post } from "./api.js";
import { button, fold, h, list, name, shown } from "./dom.js";
import { ofSelected, tenantTag } from "./tenants.js";
import { toolButton } from "./tool.js";
import { toolName, when } from "./words.js";

const OBSERVED = {
  no_answer: "no response arrived in time",
  error_answer: "the tool returned an error",
  connection_lost: "the connection was lost",
  process_died: "the process that ran it ended",
};

let last = [];
let parts;
const folded = fold("unknown outcomes", () => draw());

export function drawUnknown({ unknown }) {
  last = ofSelected(unknown);
  draw();
}

function draw() {
  if (!parts) {
    const body = document.querySelector("#unknown .body");
    const help = h("p", { class: "quiet" }, "Find out whether the call took effect, then say so. “It ran”: the call is not run again, and its result is lost. “It did not run”: the next such call runs.");
    const cards = h("div", { class: "cards" });
    const empty = h("p", { class: "empty" }, "No call has an unknown outcome. A call that was sent and never answered appears here.");
    body.append(help, cards, empty, folded.place);
    parts = { help, cards, empty };
  }
  const oldest = last.toSorted((a, b) => a.arrivedAtMs - b.arrivedAtMs);
  list(parts.cards, folded.cut(oldest), (record) => record.key, card);
  parts.help.hidden = last.length === 0;
  parts.empty.hidden = last.length > 0;
}

function card(record) {
  const title = toolName(record.tool);
  const resolve = (ran, result) => () => act(() => post(`/v1/records/${record.key}/resolve`, { ran }), `${shown(title)}: ${result}`);
  return h(
    "article",
    { class: "card wait", tabindex: "-1", "data-row": true, "aria-label": `Unknown outcome: ${shown(title)}` },
    h("header", {}, h("h3", {}, toolButton(record.tool, record.tenant)), h("span", { class: "quiet" }, "since ", when(record.arrivedAtMs)), tenantTag(record.tenant)),
    h("p", {}, `Observed: ${OBSERVED[record.observed] ?? shown(record.observed ?? "nothing")}. `, h("span", { class: "checkable" }, checkable(record))),
    h("p", { class: "quiet" }, record.session && ["session ", name(record.session), " · "], "call ", h("code", {}, record.key.slice(0, 12))),
    h(
      "p",
      { class: "acts" },
      button("It ran", resolve(true, "resolved, it ran"), { "data-hand": "ran", "aria-label": `It ran: ${shown(title)}` }),
      button("It did not run", resolve(false, "resolved, it did not run"), { "data-hand": "did-not-run", "aria-label": `It did not run: ${shown(title)}` }),
    ),
  );
}

// Before a call is settled a check proves nothing: it may still take effect.
function checkable({ settled, settlesByMs }) {
  if (settled) return "It can be checked now: it can no longer take effect.";
  return ["It cannot be checked yet, because it may still take effect. ", settlesByMs ? ["It can be checked ", when(settlesByMs), "."] : "It can be checked once its server process has answered or ended."];
}
