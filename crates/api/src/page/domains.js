// Hosts and servers with failed calls, those with the most failures first.

import { fold, h, list, name, shown, table } from "./dom.js";
import { ofSelected, tenantTag } from "./tenants.js";
import { digits, state, when } from "./words.js";

const COLUMNS = [
  { title: "host or server", class: "tool" },
  { title: "trust", class: "ended" },
  { title: "failed", class: "number" },
  { title: "succeeded", class: "number" },
  { title: "severity", class: "severity" },
  { title: "last failure", class: "when" },
];

let last = [];
let parts;
const folded = fold("hosts and servers", () => draw());

export function drawDomains({ status }) {
  last = ofSelected(status.domains);
  draw();
}

function draw() {
  if (!parts) {
    parts = { rows: table(COLUMNS, "Hosts and servers, those with the most failures first"), empty: h("p", { class: "empty" }, "No call to a host or server has failed.") };
    document.querySelector("#domains .body").append(parts.rows.element, parts.empty, folded.place);
  }
  list(parts.rows.body, folded.cut(last), (one) => `${one.tenant ?? ""}\n${one.domain}`, row);
  parts.rows.element.hidden = last.length === 0;
  parts.empty.hidden = last.length > 0;
}

function row(one) {
  const severities = Object.entries(one.failuresBySeverity).map(([severity, count]) => `${severity.replaceAll("_", " ")}: ${count}`);
  return parts.rows.row(
    {},
    h("span", {}, name(one.domain), tenantTag(one.tenant)),
    state(one.trust.toLowerCase()),
    digits(one.failures),
    digits(one.successes),
    h("span", {}, shown(severities.join(", "))),
    one.lastFailureAtMs === undefined ? "–" : when(one.lastFailureAtMs),
  );
}
