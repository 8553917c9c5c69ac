// The alternatives of a Node program for its tool calls.
//
// First prints its runtime. Then reads lines `<what> <count>` and answers each with the nanoseconds that this many
// calls took, so that the caller can run all contestants in turns.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import {
  ConsecutiveBreaker,
  ExponentialBackoff,
  TimeoutStrategy,
  circuitBreaker,
  handleAll,
  retry,
  timeout,
  wrap,
} from "cockatiel";
import CircuitBreaker from "opossum";

const version = (name) => createRequire(import.meta.url)(`${name}/package.json`).version;

const answer = { content: [{ type: "text", text: "42 entries were updated" }] };
const tool = async () => answer;
const dead = async () => {
  throw new Error("unavailable");
};

const cockatiel = (breaker) =>
  wrap(
    retry(handleAll, { maxAttempts: 3, backoff: new ExponentialBackoff() }),
    breaker,
    timeout(30_000, TimeoutStrategy.Aggressive),
  );
const cockatielBreaker = () =>
  circuitBreaker(handleAll, { halfOpenAfter: 600_000, breaker: new ConsecutiveBreaker(5) });

const closed = cockatiel(cockatielBreaker());
const openBreaker = cockatielBreaker();
for (let failure = 0; failure < 5; failure += 1) {
  await openBreaker.execute(dead).catch(() => {});
}

const opossum = new CircuitBreaker(tool, { timeout: 30_000 });
const opossumOpen = new CircuitBreaker(tool, { timeout: 30_000 });
opossumOpen.open();

const refused = async (call) => {
  try {
    await call();
  } catch {
    return;
  }
  throw new Error("a call went through an open breaker");
};

const calls = {
  "cockatiel-fresh": () => closed.execute(tool),
  "cockatiel-open": () => refused(() => openBreaker.execute(tool)),
  "opossum-fresh": () => opossum.fire(),
  "opossum-open": () => refused(() => opossumOpen.fire()),
};

console.log(`Node ${process.versions.node}, cockatiel ${version("cockatiel")}, opossum ${version("opossum")}`);
for await (const line of createInterface({ input: process.stdin })) {
  const [what, count] = line.split(" ");
  const call = calls[what];
  const started = process.hrtime.bigint();
  for (let number = 0; number < Number(count); number += 1) {
    await call();
  }
  console.log(String(process.hrtime.bigint() - started));
}
// Its statistics would keep the process alive.
process.exit(0);
