// The entry point of the page: requests all data, shows it and keeps it current.

import { afterEveryAction, unlock } from "./act.js";
import { Refused, all, get, mayLook, token } from "./api.js";
import { drawApprovals } from "./approvals.js";
import { drawBreakers } from "./breakers.js";
import { drawCalls, forgetCalls, newestCalls } from "./calls.js";
import { h, put } from "./dom.js";
import { drawDomains } from "./domains.js";
import { drawGuard } from "./guard.js";
import { help, keys } from "./keys.js";
import { keep } from "./live.js";
import { drawMode, drawNow } from "./now.js";
import { addNotification, drawNotifications } from "./notifications.js";
import { drawNumbers } from "./numbers.js";
import { drawServers } from "./servers.js";
import { drawTenants, ofEach, whenChosen } from "./tenants.js";
import { followTool } from "./tool.js";
import { drawTools } from "./tools.js";
import { drawTurns, forgetTurns, newestTurns } from "./turns.js";
import { drawUnknown } from "./unknown.js";
import { setClock, tick } from "./words.js";

const data = { servers: [] };
let heavyAt = 0;
let isAsking = false;

// Long lists are requested less often, unless they are known to have changed.
const HEAVY_EVERY = 5000;

async function refresh() {
  const sent = token.get();
  try {
    const status = await get("/v1/status");
    drawTenants(status.tenants);
    const changed = JSON.stringify(status.counts) !== JSON.stringify(data.status?.counts);
    const isHeavy = changed || Date.now() - heavyAt > HEAVY_EVERY;
    const [approvals, running, history, turns, series, guard, trust, servers, records, breakers, tools] = await Promise.all([
      ofEach("/v1/approvals", ["approvals"]),
      all("/v1/running"),
      get(newestCalls()),
      get(newestTurns()),
      get("/v1/series"),
      ofEach("/v1/guard", ["stopped", "trips"]),
      ofEach("/v1/trust", ["trust"]),
      all("/v1/servers"),
      status.counts.unknownOutcomes > 0 ? all("/v1/records", { open: true }) : { records: [] },
      isHeavy && ofEach("/v1/breakers", ["breakers"]),
      isHeavy && ofEach("/v1/tools", ["tools"]),
    ]);
    if (isHeavy) heavyAt = Date.now();
    setClock(status.atMs);
    const unknown = records.records.filter((record) => record.state === "unknown");
    Object.assign(data, { status, guard, series, history, turns, unknown, ...approvals, running: running.calls, ...trust, servers: servers.servers, ...breakers, ...tools });
    draw();
    void followTool();
    return "current";
  } catch (error) {
    if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
      // The refused token may be outdated: a token that was entered in the meantime is used, and not cleared.
      if (token.get() !== sent) return refresh();
      void ask(error);
      return "locked";
    }
    // Network errors are expected; anything else is a bug of this page.
    if (!(error instanceof TypeError) && !(error instanceof Refused)) console.error(error);
    return "lost";
  }
}

// Asks for a token if reading requires one, but not again after the user declined.
async function ask(error) {
  if (error.status === 401) token.clear();
  drawToken();
  if (isAsking) return;
  isAsking = true;
  isAsking = !(await unlock(error.status === 401 ? "Viewing this page requires a viewer token or the admin token." : error.message, mayLook));
}

function draw() {
  for (const section of [drawNow, drawApprovals, drawUnknown, drawNotifications, drawBreakers, drawCalls, drawTurns, drawTools, drawDomains, drawGuard, drawNumbers, drawServers, drawMode]) section(data);
  drawBar();
}

function drawBar() {
  const { counts } = data.status;
  const places = [
    ["approvals", "Approvals", counts.approvals],
    ["unknown", "Unknown", counts.unknownOutcomes],
    ["notifications", "Notifications", 0],
    ["breakers", "Breakers", counts.openBreakers],
    ["calls", "Calls", counts.openCalls],
    ["turns", "Turns", 0],
    ["trust", "Trust", counts.escalated + counts.blocked],
    ["domains", "Hosts", 0],
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
  document.getElementById("token").title = locked ? "Enter the admin token to make changes" : "Forget the admin token";
}

const LIVE = {
  live: ["●", "live", "Updated live"],
  polling: ["●", "live", "Updated every second or two"],
  locked: ["○", "locked", "Viewing requires a viewer token or the admin token"],
  lost: ["○", "no answer", "The gateway does not answer; this page is out of date"],
};

function showConnection(connection) {
  const place = document.getElementById("live");
  const [sign, words, title] = LIVE[connection];
  place.replaceChildren(sign, h("span", { class: sign === "●" && "word" }, ` ${words}`));
  place.title = title;
  place.classList.toggle("bad", connection === "lost");
  document.body.classList.toggle("stale", connection === "lost");
}

// Light, dark, or the system setting.
const THEMES = ["auto", "light", "dark"];
function theme(next) {
  const place = "steadfast-theme";
  const which = next ?? localStorage.getItem(place) ?? "auto";
  localStorage.setItem(place, which);
  document.documentElement.dataset.theme = which;
  const button = document.getElementById("theme");
  button.replaceChildren({ auto: "◑", light: "○", dark: "●" }[which], h("span", { class: "word" }, ` ${which}`));
  button.setAttribute("aria-label", `Colours: ${which}`);
  button.title = "Light, dark, or the system setting (t)";
}
const nextTheme = () => theme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);

theme();
document.getElementById("theme").addEventListener("click", nextTheme);
document.getElementById("help").addEventListener("click", help);
keys({ theme: nextTheme });
const live = keep(refresh, showConnection, (id, line) => {
  addNotification(id, line);
  drawNotifications();
});
whenChosen(() => {
  heavyAt = 0;
  forgetCalls();
  forgetTurns();
  void live.ask();
});
afterEveryAction(() => {
  heavyAt = 0;
  void live.ask();
});
document.getElementById("token").addEventListener("click", () => {
  if (token.get()) {
    token.clear();
    void live.ask();
  } else void unlock("Changing anything requires the admin token.");
});
setInterval(tick, 1000);
