// The current status: verdict, findings and actions. At the end of the page: the store and the modes.

import { act } from "./act.js";
import { post, put as send } from "./api.js";
import { button, fold, h, put } from "./dom.js";
import { digits, state } from "./words.js";

const SWITCHES = [
  ["all", "everything"],
  ["dedupe", "duplicates"],
  ["retry", "retries"],
  ["breaker", "circuit breakers"],
  ["guard", "loop guard"],
  ["trust", "trust"],
];
const WEAKEST = ["enforce", "shadow", "off"];

// The mode in one word: the mode of all mechanisms, or "partly".
export function mode(switches) {
  const modes = SWITCHES.map(([name]) => switches[name]);
  return switches.all === "enforce" && new Set(modes).size > 1 ? "partly" : WEAKEST[WEAKEST.indexOf(switches.all)];
}

function modeWord(switches) {
  const which = mode(switches);
  return which === "partly" ? state("shadow", "partly lowered") : state(which);
}

const HEADLINES = { fine: "All is well.", attention: "Something needs attention.", trouble: "Something is wrong." };

let last;
const folded = fold("findings", () => drawNow(last));

export function drawNow({ status, series }) {
  document.title = { fine: "● Steadfast", attention: "▲ Steadfast", trouble: "■ Steadfast" }[status.verdict];
  put(document.getElementById("verdict"), status.verdict, () => state(status.verdict));
  document.getElementById("verdict").className = "";
  last = { status, series };
  const { verdict, store, switches, counts, version } = status;
  const findings = folded.cut(status.findings);
  const hour = series.minutes.reduce((sum, minute) => sum + minute.calls, 0);
  put(document.getElementById("now"), [findings, verdict, store, switches, counts, hour, version], () => [
    h("h1", { class: verdict }, HEADLINES[verdict]),
    findings.length > 0 &&
      h(
        "ul",
        { class: "findings" },
        findings.map((finding) => h("li", {}, state(finding.level, finding.what), h("span", { class: "quiet" }, finding.todo))),
      ),
    folded.place,
    store.recordsLost &&
      h("p", { class: "acts" }, button("Accept the loss of records", accept, { "data-hand": "accept-loss" })),
    h(
      "dl",
      { class: "facts" },
      fact("running now", digits(counts.openCalls)),
      fact("calls in the last hour", digits(hour)),
      fact("mode", modeWord(switches)),
      fact("store", store.trouble ? state("trouble", `${store.kind} does not answer`) : state("fine", `${store.kind} answers`)),
      fact("version", version),
    ),
  ]);
}

const accept = () => act(() => post("/v1/state/accept"), "Accepted: calls with an idempotency key run again");

const fact = (title, value) => h("div", {}, h("dt", {}, title), h("dd", {}, value));

export function drawMode({ status }) {
  const { store, switches } = status;
  put(document.querySelector("#mode .body"), [store, switches], () => [
    h(
      "p",
      {},
      store.trouble ? state("trouble", `the ${store.kind} store does not answer`) : state("fine", `the ${store.kind} store answers`),
      store.trouble && h("span", { class: "quiet block" }, store.trouble),
    ),
    h("p", { class: "quiet" }, "These switches lower what is configured. Shadow decides and logs, and changes nothing. Off passes calls straight through. What you change here lasts until the gateway restarts."),
    h(
      "ul",
      { class: "switches" },
      SWITCHES.map(([name, word]) =>
        h("li", {}, h("label", { for: `switch-${name}` }, word), chooser(name, word, switches[name]), switches[name] !== "enforce" && state(switches[name])),
      ),
    ),
  ]);
}

function chooser(name, word, current) {
  const modes = [
    ["enforce", "as configured"],
    ["shadow", "shadow"],
    ["off", "off"],
  ];
  const select = h(
    "select",
    { id: `switch-${name}`, "data-hand": name },
    modes.map(([mode, title]) => h("option", { value: mode, selected: mode === current }, title)),
  );
  select.addEventListener("change", () => {
    const mode = select.value;
    select.value = current;
    void act(
      () => send("/v1/switches", { [name]: mode }),
      `${word}: ${modes.find(([one]) => one === mode)[1]}`,
    );
  });
  return select;
}

