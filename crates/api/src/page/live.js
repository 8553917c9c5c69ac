// Keeps the page current: by events, and by polling while there is no event stream.
//
// An event only triggers a refresh: all data comes from the same requests. Only notifications are shown directly. A hidden
// page sends no requests.

import { query, request } from "./api.js";

const EVERY = 1500;
const WITH_EVENTS = 10_000;
const GATHER = 250;
const RECONNECT = 3000;

// Calls `refresh` after possible changes, one call at a time. It returns "current", "locked" or "lost". Calls `showConnection`
// with the state of the connection, and `notify` with each notification.
export function keep(refresh, showConnection, notify) {
  let isStreaming = false;
  // The id of the last event. Initially all stored events are requested.
  let last = "0-0";
  let busy = false;
  let isWanted = false;
  let timer;

  async function ask() {
    clearTimeout(timer);
    if (document.hidden) return;
    if (busy) {
      isWanted = true;
      return;
    }
    busy = true;
    const outcome = await refresh();
    busy = false;
    const isLive = outcome === "current" && isStreaming;
    showConnection(outcome === "current" ? (isLive ? "live" : "polling") : outcome);
    const next = isWanted ? GATHER : isLive ? WITH_EVENTS : EVERY;
    isWanted = false;
    clearTimeout(timer);
    timer = setTimeout(ask, next);
  }

  function soon() {
    if (busy) {
      isWanted = true;
      return;
    }
    clearTimeout(timer);
    timer = setTimeout(ask, GATHER);
  }

  // One event: lines with its id, its name and its data.
  function handleEvent(text) {
    const fields = new Map(text.split("\n").map((line) => [line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)]));
    if (fields.has("id")) last = fields.get("id");
    if (fields.get("event") === "notification") notify(fields.get("id"), JSON.parse(fields.get("data")));
  }

  async function listen() {
    try {
      const response = await request(query("/v1/events", { after: last }), { headers: { accept: "text/event-stream" } });
      if (!response.ok || !response.body) return void (await response.body?.cancel());
      isStreaming = true;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        events.forEach(handleEvent);
        soon();
      }
    } catch {
      // The stream is opened again below; until then the page polls.
    } finally {
      isStreaming = false;
      setTimeout(listen, RECONNECT);
    }
  }

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) void ask();
  });
  void ask();
  void listen();
  return { ask, soon };
}
