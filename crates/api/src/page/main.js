// Puts the page together: asks for everything, shows it, and keeps it current.

import { afterEveryDeed, unlock } from "./act.js";
import { Refused, all, get, mayLook, token } from "./api.js";
import { drawApprovals } from "./approvals.js";
import { drawBreakers } from "./breakers.js";
import { depth, drawCalls } from "./calls.js";
import { h, put } from "./dom.js";
import { drawGuard } from "./guard.js";
import { help, keys } from "./keys.js";
import { keep } from "./live.js";
import { drawMode, drawNow } from "./now.js";
import { drawNumbers } from "./numbers.js";
import { drawServers } from "./servers.js";
import { drawTools } from "./tools.js";
import { drawTurns, newest } from "./turns.js";
import { setClock, tick } from "./words.js";

const seen = { servers: [] };
let heavyAt = 0;
let isAsking = false;

// What is long is asked for less often, unless it is known to have changed.
const HEAVY_EVERY = 5000;

async function refresh() {
  const asked = token.get();
  try {
    const [status, approvals, running, history, turns, series, guard, trust, servers] = await Promise.all([
      get("/v1/status"),
      all("/v1/approvals"),
      all("/v1/running"),
      get(`/v1/history?limit=${depth()}`),
      get(newest),
      get("/v1/series"),
      all("/v1/guard"),
      all("/v1/trust"),
      all("/v1/servers"),
    ]);
    const changed = JSON.stringify(status.counts) !== JSON.stringify(seen.status?.counts);
    Object.assign(seen, { status, guard, series, approvals: approvals.approvals, running: running.calls, history, turns, trust: trust.trust, servers: servers.servers });
    setClock(status.atMs);
    if (changed || Date.now() - heavyAt > HEAVY_EVERY) {
      heavyAt = Date.now();
      const [breakers, tools] = await Promise.all([all("/v1/breakers"), all("/v1/tools")]);
      Object.assign(seen, { breakers: breakers.breakers, tools: tools.tools });
    }
    draw();
    return "seen";
  } catch (error) {
    if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
      // What was refused is not what is known by now: a token that was given meanwhile is asked with, and not forgotten.
      if (token.get() !== asked) return refresh();
      void ask(error);
      return "locked";
    }
    // That nobody answers is said; everything else is a mistake of ours.
    if (!(error instanceof TypeError) && !(error instanceof Refused)) console.error(error);
    return "lost";
  }
}

// Where strangers may not look the page asks for the token, and not again if that is not wanted.
async function ask(error) {
  if (error.status === 401) token.clear();
  drawToken();
  if (isAsking) return;
  isAsking = true;
  isAsking = !(await unlock(error.status === 401 ? "To see what happens here takes the token of a viewer, or the admin token." : error.message, mayLook));
}

function draw() {
  for (const section of [drawNow, drawApprovals, drawBreakers, drawCalls, drawTurns, drawTools, drawGuard, drawNumbers, drawServers, drawMode]) section(seen);
  drawBar();
}

function drawBar() {
  const { counts } = seen.status;
  const places = [
    ["approvals", "Approvals", counts.approvals],
    ["breakers", "Breakers", counts.openBreakers],
    ["calls", "Calls", counts.openCalls],
    ["turns", "Turns", 0],
    ["trust", "Trust", counts.escalated + counts.blocked],
    ["guard", "Guard", counts.stoppedSessions],
    ["numbers", "Numbers", 0],
    ["servers", "Servers", 0],
    ["mode", "Mode", 0],
  ];
  put(document.getElementById("nav"), places, () =>
    places.map(([id, title, number]) => h("a", { href: `#${id}`, "data-hand": id }, title, number > 0 && h("span", { class: "badge" }, String(number)))),
  );
  drawToken();
}

function drawToken() {
  const locked = !token.get();
  put(document.getElementById("token"), locked, () => [locked ? "Unlock" : "Lock"]);
  document.getElementById("token").title = locked ? "Give the admin token, to change something" : "Forget the admin token";
}

const LIVE = {
  live: ["●", "live", "Told of everything as it happens"],
  asking: ["●", "live", "Asked for every second or two"],
  locked: ["○", "locked", "To look takes the token of a viewer or of the admin"],
  lost: ["○", "no answer", "The gateway does not answer; what you see is old"],
};

function says(how) {
  const place = document.getElementById("live");
  const [sign, words, title] = LIVE[how];
  place.replaceChildren(sign, h("span", { class: sign === "●" && "word" }, ` ${words}`));
  place.title = title;
  place.classList.toggle("bad", how === "lost");
  document.body.classList.toggle("stale", how === "lost");
}

// Light, dark, or as the system has it.
const THEMES = ["auto", "light", "dark"];
function theme(next) {
  const place = "steadfast-theme";
  const which = next ?? localStorage.getItem(place) ?? "auto";
  localStorage.setItem(place, which);
  document.documentElement.dataset.theme = which;
  const button = document.getElementById("theme");
  button.replaceChildren({ auto: "◑", light: "○", dark: "●" }[which], h("span", { class: "word" }, ` ${which}`));
  button.setAttribute("aria-label", `Colours: ${which}`);
  button.title = "Light, dark, or as the system has it (t)";
}
const nextTheme = () => theme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);

theme();
document.getElementById("theme").addEventListener("click", nextTheme);
document.getElementById("help").addEventListener("click", help);
keys({ theme: nextTheme });
const live = keep(refresh, says);
afterEveryDeed(() => {
  heavyAt = 0;
  void live.ask();
});
document.getElementById("token").addEventListener("click", () => {
  if (token.get()) {
    token.clear();
    void live.ask();
  } else void unlock("To change something takes the admin token.");
});
setInterval(tick, 1000);
