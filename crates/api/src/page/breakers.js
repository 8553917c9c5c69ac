// Circuit breakers, open ones first, each with a timeline of its last hour.

import { act } from "./act.js";
import { post } from "./api.js";
import { button, dialog, fold, h, list, name, s, shown } from "./dom.js";
import { at, tenantTag } from "./tenants.js";
import { toolButton } from "./tool.js";
import { REASONS, count, now, span, state, when } from "./words.js";

const HOUR = 3_600_000;
const ORDER = { OPEN: 0, FORCED_OPEN: 1, HALF_OPEN: 2, CLOSED: 3 };

let last;
let all = false;
const folded = fold("circuit breakers", () => draw(last));

export function drawBreakers({ breakers }) {
  last = breakers;
  draw(breakers);
}

const title = ({ about }) => (about.kind === "tool" ? `${about.namespace}/${about.tool}` : about.name === "*" ? "everything" : `all at ${about.name}`);
const isQuiet = (breaker) => breaker.state === "CLOSED" && !breaker.changes.some((change) => change.at > now() - HOUR);

function draw(breakers) {
  const body = document.querySelector("#breakers .body");
  if (!body.firstChild) {
    const toggle = h("button", { type: "button", class: "plain", "data-hand": "all" });
    toggle.addEventListener("click", () => {
      all = !all;
      draw(last);
    });
    body.append(h("ul", { class: "breakers" }), h("p", { class: "empty" }), folded.place, h("p", {}, toggle));
  }
  const [rows, empty, , more] = body.children;
  const quiet = breakers.filter(isQuiet).length;
  const shownOnes = breakers.filter((breaker) => all || !isQuiet(breaker));
  shownOnes.sort((a, b) => ORDER[a.state] - ORDER[b.state] || (b.since ?? 0) - (a.since ?? 0) || (title(a) < title(b) ? -1 : 1));
  const minute = Math.floor(now() / 60_000);
  list(rows, folded.cut(shownOnes).map((breaker) => ({ ...breaker, minute })), (breaker) => `${breaker.tenant ?? ""}\n${breaker.key}`, (breaker) => breakerRow(breaker));
  empty.hidden = shownOnes.length > 0;
  empty.textContent = breakers.length === 0 ? "No tool was called yet. When a tool keeps failing, its circuit breaker opens and appears here." : "All circuit breakers are closed, and none changed in the last hour.";
  more.hidden = quiet === 0;
  more.firstChild.textContent = all ? "Hide those that did not change" : `Show ${count(quiet, "closed circuit breaker")}`;
}

// One breaker with its last hour and its actions. `isNamed` is true if its tool is already shown above.
export function breakerRow(breaker, isNamed = false) {
  const label = title(breaker);
  const isOpen = breaker.state !== "CLOSED";
  const path = at(`/v1/breakers/${breaker.key}`, breaker.tenant);
  const tool = breaker.about.kind === "tool" ? toolButton(breaker.about, breaker.tenant) : name(label);
  const reset = () => act(() => post(path, { to: "reset" }), `${shown(label)}: calls pass again`);
  return h(
    "li",
    { tabindex: "-1", "data-row": true },
    h("div", { class: "who" }, state(breaker.state), !isNamed && [tool, tenantTag(breaker.tenant)], breaker.mode !== "enforce" && state(breaker.mode)),
    strip(breaker),
    h("div", { class: "why quiet" }, reason(breaker)),
    h(
      "div",
      { class: "acts" },
      breaker.state !== "FORCED_OPEN" && button("Force open…", () => force(path, label), { "data-hand": "force", "aria-label": `Force ${shown(label)} open` }),
      (isOpen || breaker.failures > 0) && button("Reset", reset, { "data-hand": "reset", "aria-label": `Reset ${shown(label)}` }),
    ),
  );
}

function reason(breaker) {
  const parts = [];
  if (breaker.forced) parts.push(breaker.forced.by === "hand" ? "forced by an operator" : "forced by the configuration");
  if (breaker.forced?.until) parts.push(["until ", when(breaker.forced.until)]);
  const reason = breaker.openedBy ?? breaker.reason;
  if (reason && !breaker.forced) parts.push(REASONS[reason] ?? reason);
  if (breaker.since) parts.push(["since ", when(breaker.since)]);
  if (breaker.failures + breaker.successes > 0) parts.push(`${breaker.failures} of ${breaker.failures + breaker.successes} failed`);
  if (breaker.probing) parts.push("a probe is running");
  else if (breaker.nextProbeAt && breaker.state !== "CLOSED") parts.push(breaker.nextProbeAt > now() ? ["next probe ", when(breaker.nextProbeAt)] : "the next call is a probe");
  return parts.flatMap((part, at) => (at ? [" · ", part] : [part]));
}

// The last hour. The height also shows the state: low is closed, half is probing, full is open.
function strip({ changes, state: current, since }) {
  const end = now();
  const begin = end - HOUR;
  const inside = changes.filter((change) => change.at > begin);
  const before = inside.length > 0 ? inside[0].from : (since ?? 0) > begin ? "CLOSED" : current;
  const parts = [];
  let [from, as] = [begin, before];
  for (const change of inside) {
    parts.push([from, change.at, as]);
    [from, as] = [change.at, change.to];
  }
  parts.push([from, end, as]);
  const words = parts.filter(([, , which]) => which !== "CLOSED").map(([a, b, which]) => `${WORDS[which]} for ${span(b - a)}`);
  const drawing = s("svg", { class: "strip", viewBox: "0 0 600 24", preserveAspectRatio: "none", role: "img", "aria-label": `Last hour: ${words.join(", ") || "closed"}` });
  for (const [a, b, which] of parts) {
    const [x, width] = [((a - begin) / HOUR) * 600, Math.max(2, ((b - a) / HOUR) * 600)];
    const height = { CLOSED: 3, HALF_OPEN: 12, OPEN: 24, FORCED_OPEN: 24 }[which];
    const period = `${WORDS[which]} from ${new Date(a).toLocaleTimeString()} to ${new Date(b).toLocaleTimeString()}`;
    drawing.append(s("rect", { class: which, x, y: 24 - height, width, height }, s("title", {}, period)));
    if (which === "FORCED_OPEN") drawing.append(s("rect", { class: "inner", x: x + 1, y: 8, width: Math.max(0, width - 2), height: 8 }));
  }
  return h("div", { class: "strip-box" }, drawing);
}

const WORDS = { CLOSED: "closed", OPEN: "open", HALF_OPEN: "probing", FORCED_OPEN: "forced open" };

function force(path, label) {
  const spans = [
    ["30m", "for 30 minutes"],
    ["2h", "for 2 hours"],
    ["8h", "for 8 hours"],
    [undefined, "until it is reset"],
  ];
  const place = dialog(
    "Force open",
    h("p", {}, "Calls to ", name(label), " are refused without running:"),
    h(
      "p",
      { class: "acts" },
      spans.map(([span, title]) =>
        button(
          title,
          () => {
            place.close();
            return act(() => post(path, span ? { to: "open", for: span } : { to: "open" }), `${shown(label)}: forced open ${title}`);
          },
          { class: "danger" },
        ),
      ),
    ),
  );
}
