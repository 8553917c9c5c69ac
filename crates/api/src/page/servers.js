// Upstream servers with their state, restarts and last lines of stderr.

import { fold, h, list, name, shown } from "./dom.js";
import { count, state, when } from "./words.js";

// The display of each process state, the worst first.
const LIVES = {
  down: ["trouble", "down"],
  backing_off: ["attention", "died, restarting"],
  starting: ["attention", "starting"],
  ending: ["attention", "ending"],
  up: ["fine", "running"],
  elsewhere: ["fine", "elsewhere"],
  idle: ["idle", "not running"],
  closed: ["idle", "not running"],
};
const WORST_FIRST = Object.keys(LIVES);
const worst = (instances) => WORST_FIRST.find((life) => instances.some((instance) => instance.state === life)) ?? "idle";

const folded = fold("servers", () => draw());
let last = [];

export function drawServers({ servers }) {
  last = servers;
  draw();
}

function draw() {
  const servers = last;
  const body = document.querySelector("#servers .body");
  if (!body.firstChild) body.append(h("ul", { class: "servers" }), h("p", { class: "empty" }), folded.place);
  const [rows, empty] = body.children;
  list(rows, folded.cut(servers), (server) => server.name, row);
  empty.hidden = servers.length > 0;
  empty.textContent = "This gateway has no servers. The servers of the configuration appear here, with their restarts and the last lines of their stderr.";
}

function row({ name: server, instances, lastFailure }) {
  const life = LIVES[worst(instances)];
  const [which, word] = lastFailure && life[0] !== "attention" ? ["trouble", instances.some((one) => one.state === "elsewhere") ? "not reachable" : "down"] : life;
  const restarts = instances.reduce((sum, instance) => sum + instance.restarts, 0);
  const tools = Math.max(0, ...instances.map((instance) => instance.tools));
  const facts = [instances.length > 1 && `${instances.length} processes`, count(restarts, "restart"), tools > 0 && count(tools, "tool")];
  return h(
    "li",
    { tabindex: "-1", "data-row": true },
    h("div", { class: "who" }, state(which, word), name(server), h("span", { class: "quiet" }, facts.filter(Boolean).join(" · "))),
    lastFailure && h("p", { class: "warning" }, shown(lastFailure.why), " ", when(lastFailure.atMs)),
    instances.map(({ lastEnd, stderr }, at) => [
      lastEnd && lastEnd.atMs !== lastFailure?.atMs && h("p", { class: "warning" }, shown(lastEnd.why), " ", when(lastEnd.atMs)),
      stderr.length > 0 && h("details", { "data-hand": `stderr ${at}` }, h("summary", {}, "last lines of stderr"), h("pre", { class: "sent", tabindex: "0" }, shown(stderr.join("\n")))),
    ]),
  );
}
