// Keeps the page current: by events, and by polling while there is no event stream.
//
// An event only triggers a refresh: all data comes from the same requests. Only notifications are shown directly. A hidden
// page sends no requests.

import { query, request } from "./api.js";

const EVERY = 1500;
const WITH_EVENTS = 10_000;
const GATHER = 250;
const AGAIN = 3000;

// Calls `refresh` after possible changes, one call at a time. It returns "seen", "locked" or "lost". Calls `says` with the
// state of the connection, and `notify` with each notification.
export function keep(refresh, says, notify) {
  let isTold = false;
  // The id of the last event. Initially all stored events are requested.
  let last = "0-0";
  let busy = false;
  let wanted = false;
  let timer;

  async function ask() {
    clearTimeout(timer);
    if (document.hidden) return;
    if (busy) {
      wanted = true;
      return;
    }
    busy = true;
    const came = await refresh();
    busy = false;
    const told = came === "seen" && isTold;
    says(came === "seen" ? (told ? "live" : "asking") : came);
    const next = wanted ? GATHER : told ? WITH_EVENTS : EVERY;
    wanted = false;
    clearTimeout(timer);
    timer = setTimeout(ask, next);
  }

  function soon() {
    if (busy) {
      wanted = true;
      return;
    }
    clearTimeout(timer);
    timer = setTimeout(ask, GATHER);
  }

  // One event: lines with its id, its name and its data.
  function heard(text) {
    const fields = new Map(text.split("\n").map((line) => [line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)]));
    if (fields.has("id")) last = fields.get("id");
    if (fields.get("event") === "notification") notify(fields.get("id"), JSON.parse(fields.get("data")));
  }

  async function listen() {
    try {
      const response = await request(query("/v1/events", { after: last }), { headers: { accept: "text/event-stream" } });
      if (!response.ok || !response.body) return void (await response.body?.cancel());
      isTold = true;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        events.forEach(heard);
        soon();
      }
    } catch {
      // The stream is opened again below; until then the page polls.
    } finally {
      isTold = false;
      setTimeout(listen, AGAIN);
    }
  }

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) void ask();
  });
  void ask();
  void listen();
  return { ask, soon };
}
