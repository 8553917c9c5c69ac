// The loop guard: stopped sessions, and the arguments that the model sent at each trip.

import { fold, h, list, name, shown } from "./dom.js";
import { tenantTag } from "./tenants.js";
import { toolButton } from "./tool.js";
import { LAYERS, count, state, toolName, when } from "./words.js";

let last;
const foldedStops = fold("stopped calls", () => draw());
const folded = fold("interventions", () => draw());

export function drawGuard({ guard }) {
  last = guard;
  draw();
}

function draw() {
  const body = document.querySelector("#guard .body");
  if (!body.firstChild) {
    body.append(h("ul", { class: "lost" }), foldedStops.place, h("div", { class: "trips" }), h("p", { class: "empty" }, "The loop guard has not acted. When a model repeats a call that cannot work, what it sent appears here."), folded.place);
  }
  const [stopped, , trips, empty] = body.children;
  const stops = [...last.stopped].sort((a, b) => a.since - b.since);
  list(stopped, foldedStops.cut(stops), (one) => JSON.stringify(one), stop);
  stopped.hidden = last.stopped.length === 0;
  const newest = [...last.trips].sort((a, b) => b.lastAtMs - a.lastAtMs);
  list(trips, folded.cut(newest), (trip) => `${trip.tenant} ${trip.session} ${toolName(trip.tool)} ${trip.digest}`, row);
  empty.hidden = newest.length + last.stopped.length > 0;
}

function stop(one) {
  return h(
    "li",
    { tabindex: "-1", "data-row": true },
    h("div", { class: "who" }, state("refused", "stopped"), one.tool ? toolButton(one.tool, one.tenant) : "the whole turn", tenantTag(one.tenant), one.session && h("span", { class: "quiet" }, "in session ", name(one.session))),
    h("div", { class: "why quiet" }, `${LAYERS[one.layer] ?? one.layer}, ${count(one.count, "time")}, since `, when(one.since), one.until ? [" · one try ", when(one.until)] : " · until the next turn"),
  );
}

function row(trip) {
  return h(
    "article",
    { class: "trip", tabindex: "-1", "data-row": true },
    h(
      "header",
      {},
      toolButton(trip.tool, trip.tenant),
      tenantTag(trip.tenant),
      state(trip.refused ? "refused" : "attention", trip.refused ? "refused" : "warned"),
      h("span", { class: "quiet" }, trip.layers.map((layer) => LAYERS[layer] ?? layer).join(", ")),
      h("span", { class: "quiet" }, trip.times > 1 && `${count(trip.times, "time")}, last `, when(trip.lastAtMs)),
      (trip.session || trip.model) && h("span", { class: "quiet" }, trip.model && [name(trip.model), " "], trip.session && ["in session ", name(trip.session)]),
    ),
    h("div", { class: "pair" }, part("the model sent", trip.arguments), part("the response", trip.error)),
  );
}

const part = (title, text) => h("figure", {}, h("figcaption", { class: "quiet" }, title), h("pre", { class: "sent", tabindex: "0", "aria-label": title }, shown(text)));
