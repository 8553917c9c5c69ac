// The dialog of one call: its steps, and the rule that decided.

import { get } from "./api.js";
import { button, dialog, h, name, shown } from "./dom.js";
import { toolButton } from "./tool.js";
import { label, show, turnOf } from "./waterfall.js";
import { CLASSES, count, span, state, when } from "./words.js";

const SIGNS = { good: "●", waiting: "◌", bad: "■", plain: "·" };

export async function open(id, at) {
  let story;
  try {
    story = await get(`/v1/history/${encodeURIComponent(id)}`);
  } catch (error) {
    dialog("Call", h("p", {}, `This call cannot be shown: ${error.message}`));
    return;
  }
  // A request id may be used again. A turn stores the time at which it sent the call, shortly before its arrival.
  const arrived = nearest([...story.calls, ...story.traces].map((call) => call.arrivedAtMs), at);
  const facts = story.calls.find((call) => call.arrivedAtMs === arrived);
  const trace = story.traces.find((one) => one.arrivedAtMs === arrived);
  const about = trace ?? facts;
  if (!about) return void dialog("Call", h("p", {}, "This call is no longer recorded."));
  const turn = h("p", { hidden: true });
  dialog(
    toolButton(about.tool, about.tenant),
    h("div", { class: "story" }, outcome(facts, trace), turn, h("h3", {}, "Step by step"), trace ? steps(trace) : attempts(facts), h("h3", {}, "About it"), details(facts, trace)),
  );
  const found = await turnOf(id, facts?.turn);
  if (!found) return;
  turn.append("part of ", button(name(label(found)), () => show(found), { class: "link" }));
  turn.hidden = false;
}

const nearest = (moments, at) => moments.reduce((best, one) => (best === undefined || Math.abs(one - at) < Math.abs(best - at) ? one : best), undefined);

function outcome(facts, trace) {
  const end = trace?.ended;
  const status = end?.status ?? facts?.status ?? "running";
  const [code, rule] = [end?.code ?? facts?.code, end?.rule ?? facts?.rule];
  const tried = end?.attempts ?? facts?.attempts.length ?? 0;
  const took = end?.tookMs ?? facts?.tookMs;
  const message = end?.message ?? facts?.message;
  return [
    h(
      "p",
      { class: "outcome" },
      state(status),
      took !== undefined && h("span", {}, `after ${span(took)}`),
      h("span", {}, tried === 0 ? "did not run" : count(tried, "attempt")),
      (end?.replayed ?? facts?.replayed) && h("span", { class: "tag" }, "replayed"),
      code && h("code", { class: "code" }, code),
      rule && h("span", { class: "rule" }, "decided by ", h("code", {}, shown(rule))),
    ),
    message && h("pre", { class: "sent", tabindex: "0", "aria-label": "The response to the caller" }, shown(message)),
  ];
}

function steps(trace) {
  const line = (step) =>
    h(
      "li",
      { class: step.tone },
      h("span", { class: "offset" }, `+${span(Math.max(0, step.atMs - trace.arrivedAtMs))}`),
      h("span", { class: "sign", "aria-hidden": "true" }, SIGNS[step.tone] ?? "·"),
      h("span", { class: "what" }, shown(step.text), step.rule && [" ", h("code", { class: "code" }, shown(step.rule))]),
    );
  return [h("ol", { class: "steps" }, trace.steps.map(line)), trace.leftOut > 0 && h("p", { class: "quiet" }, `${count(trace.leftOut, "more step")}, not kept`)];
}

// The attempts in the history, if the steps are no longer stored or another process made the call.
function attempts(facts) {
  const line = (attempt, at) =>
    h(
      "li",
      { class: attempt.rule ? "bad" : "good" },
      h("span", { class: "offset" }, `+${span(Math.max(0, attempt.startedAtMs - facts.arrivedAtMs))}`),
      h("span", { class: "sign", "aria-hidden": "true" }, attempt.rule ? "■" : "●"),
      h(
        "span",
        { class: "what" },
        `attempt ${at + 1} ${attempt.rule ? "failed" : "answered"} after ${span(attempt.finishedAtMs - attempt.startedAtMs)}`,
        attempt.rule && [attempt.retriable ? ": a retry may help " : ": a retry would not help ", h("code", { class: "code" }, shown(attempt.rule))],
      ),
    );
  return [
    facts.attempts.length > 0 ? h("ol", { class: "steps" }, facts.attempts.map(line)) : h("p", {}, facts.replayed ? "A stored result was returned; the tool did not run." : "It did not run."),
    h("p", { class: "quiet" }, "Only the attempts are known: another process made this call, or it is older than the last thousand."),
  ];
}

function details(facts, trace) {
  const about = { ...facts, ...trace };
  const rows = [
    ["arrived", when(about.arrivedAtMs)],
    ["kind of tool", CLASSES[about.class] ?? about.class],
    ["session", about.session && name(about.session)],
    ["actor", facts?.actor && name(facts.actor)],
    ["tenant", about.tenant && name(about.tenant)],
    ["model", about.model && name(about.model)],
    ["trust signature", facts?.signature && name(facts.signature)],
    ["dangerous command", facts?.danger && shown(facts.danger)],
    ["arguments", facts?.invalidArguments && shown(facts.invalidArguments)],
    ["arguments' digest", facts?.digest && h("code", {}, String(facts.digest).slice(0, 16))],
    ["key", facts?.key && h("code", {}, facts.key)],
    ["recorded", facts?.recorded === undefined ? null : facts.recorded ? "yes" : "no, although it should be"],
    ["request", h("code", {}, shown(about.requestId))],
  ];
  return h("dl", { class: "details" }, rows.filter(([, value]) => value).map(([title, value]) => [h("dt", {}, title), h("dd", {}, value)]));
}
