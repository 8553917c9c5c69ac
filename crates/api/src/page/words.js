// Labels, and formatting of numbers and times.

import { h } from "./dom.js";

// Each state has a shape and a word besides its colour.
const STATES = {
  fine: ["●", "good", "all is well"],
  attention: ["▲", "wait", "needs attention"],
  trouble: ["■", "bad", "in trouble"],
  success: ["●", "good", "success"],
  error: ["■", "bad", "failed"],
  retriable_error: ["■", "bad", "failed"],
  retry_exhausted: ["■", "bad", "gave up"],
  circuit_open: ["◧", "bad", "circuit breaker open"],
  timeout: ["■", "bad", "timed out"],
  running: ["◌", "wait", "running"],
  refused: ["◧", "bad", "refused"],
  completed: ["●", "good", "completed"],
  partial: ["◐", "wait", "partly done"],
  failed: ["■", "bad", "failed"],
  succeeded: ["●", "good", "succeeded"],
  restored: ["●", "good", "done before"],
  skipped: ["○", "wait", "skipped"],
  stopped: ["◧", "wait", "stopped"],
  left_running: ["◌", "wait", "left running"],
  broke_off: ["◌", "bad", "broke off"],
  ended: ["○", "plain", "ended"],
  CLOSED: ["●", "good", "closed"],
  OPEN: ["■", "bad", "open"],
  HALF_OPEN: ["◐", "wait", "probing"],
  FORCED_OPEN: ["▣", "bad", "forced open"],
  trusted: ["●", "good", "trusted"],
  recovering: ["◐", "wait", "recovering"],
  escalated: ["▲", "wait", "needs approval"],
  blocked: ["■", "bad", "blocked"],
  enforce: ["●", "good", "as configured"],
  shadow: ["◐", "wait", "shadow"],
  off: ["○", "bad", "off"],
  idle: ["○", "plain", "not running"],
  info: ["○", "plain", "info"],
};

export function state(which, word) {
  const [sign, tone, usual] = STATES[which] ?? ["○", "plain", String(which)];
  return h("span", { class: `state ${tone}` }, h("span", { class: "sign", "aria-hidden": "true" }, sign), word ?? usual);
}

export const tone = (which) => (STATES[which] ?? ["", "plain"])[1];

export const LAYERS = {
  non_retryable: "not worth a retry",
  loop: "the same failing call again",
  turn_limit: "too many failures in a turn",
  ping_pong: "back and forth between failing calls",
  repeated_success: "the same success again",
};

export const REASONS = {
  consecutive: "failures in a row",
  rate: "too many failures",
  slow: "too slow",
  cooled_down: "cool-down over",
  probe_failed: "a probe failed",
  probes_succeeded: "probes worked",
  probes_answered: "probes were answered",
  forced: "forced by an operator",
  reset: "reset by an operator",
};

export const CLASSES = { read_only: "read-only", idempotent: "idempotent", mutating: "mutating", unknown: "may change things" };

export const toolName = (tool) => `${tool.namespace}/${tool.tool}`;

export const count = (number, one, more = `${one}s`) => `${number} ${number === 1 ? one : more}`;

const number = new Intl.NumberFormat("en-GB");
export const digits = (value) => number.format(value);

export function span(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  if (ms < 3_600_000) return `${Math.round(ms / 60_000)} min`;
  if (ms < 172_800_000) return `${Math.round(ms / 3_600_000)} h`;
  return `${Math.round(ms / 86_400_000)} d`;
}

// The clock of the gateway, to which all times refer.
let ahead = 0;
export const setClock = (serverNow) => {
  ahead = serverNow - Date.now();
};
export const now = () => Date.now() + ahead;

function relative(at) {
  const distance = now() - at;
  if (Math.abs(distance) < 1500) return "now";
  return distance > 0 ? `${span(distance)} ago` : `in ${span(-distance)}`;
}

// A relative time, with the absolute time as its title.
export function when(at) {
  const element = h("time", { "data-at": at, datetime: new Date(at).toISOString(), title: new Date(at).toLocaleString() });
  element.textContent = relative(at);
  return element;
}

// An absolute time.
export const clock = (at) => new Date(at).toLocaleString([], { dateStyle: "short", timeStyle: "short" });

export function tick() {
  for (const element of document.querySelectorAll("time[data-at]")) {
    const text = relative(Number(element.dataset.at));
    if (element.textContent !== text) element.textContent = text;
  }
}
