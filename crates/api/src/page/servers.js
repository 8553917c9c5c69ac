// Servers behind the gateway: whether they live, how often they had to be started again, and their last words.

import { h, list, name, shown } from "./dom.js";
import { count, state, when } from "./words.js";

const LIVES = { running: "fine", ready: "fine", connected: "fine", starting: "attention", restarting: "attention", idle: "off", stopped: "off", failed: "trouble", dead: "trouble" };

export function drawServers({ servers }) {
  const body = document.querySelector("#servers .body");
  if (!body.firstChild) body.append(h("ul", { class: "servers" }), h("p", { class: "empty" }));
  const [rows, empty] = body.children;
  list(rows, servers, (server) => `${server.name}\n${server.session ?? ""}\n${server.pid ?? ""}`, row);
  empty.hidden = servers.length > 0;
  empty.textContent = "Nothing is known of servers yet. Those behind this gateway appear here, with their restarts and what they last said.";
}

function row(server) {
  const said = Array.isArray(server.stderr) ? server.stderr.join("\n") : server.stderr;
  const facts = [
    server.restarts !== undefined && count(server.restarts, "restart"),
    server.sinceMs && ["since ", when(server.sinceMs)],
    server.pid && `process ${server.pid}`,
    server.sessions !== undefined && count(server.sessions, "session"),
  ].filter(Boolean);
  return h(
    "li",
    { tabindex: "-1", "data-row": true },
    h("div", { class: "who" }, server.state && state(LIVES[server.state] ?? "attention", server.state), name(server.name), h("span", { class: "quiet" }, facts.flatMap((fact, at) => (at ? [" · ", fact] : [fact])))),
    server.why && h("p", { class: "warning" }, shown(server.why)),
    said && h("details", { "data-hand": "stderr" }, h("summary", {}, "its last words"), h("pre", { class: "sent", tabindex: "0" }, shown(said))),
  );
}
