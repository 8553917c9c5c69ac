// Loaded into the conformance suite before it runs. The suite gives a server a few seconds for some answers, and takes a slow
// machine for a server that does not answer. Here its timeouts become longer, and its short pauses stay unchanged.
'use strict';

const LIMIT_FROM_MS = 2_000;
const FACTOR = 60;
const patient = (ms) => (ms >= LIMIT_FROM_MS ? ms * FACTOR : ms);
// However short it is: a timer that aborts a request is a timeout and not a pause.
const givesUp = (work) => /\.abort\(\)/.test(String(work));

const setTimer = globalThis.setTimeout;
globalThis.setTimeout = (work, ms, ...rest) =>
  setTimer(work, givesUp(work) ? ms * FACTOR : patient(ms), ...rest);

const abortAfter = AbortSignal.timeout.bind(AbortSignal);
AbortSignal.timeout = (ms) => abortAfter(patient(ms));
