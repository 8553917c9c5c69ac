// Statistics of the last hour, each with a small chart.

import { h, put, s } from "./dom.js";
import { digits } from "./words.js";

const CHARTS = [
  { title: "Duplicates prevented", what: "calls that would have run twice", parts: [["duplicates", "ink"]] },
  { title: "Calls saved by a retry", what: "succeeded because they were retried", parts: [["saved", "ink"]] },
  { title: "Stopped by the loop guard", what: "calls of a model in a loop, refused", parts: [["guardStops", "ink"]] },
  {
    title: "Calls",
    what: "filled: succeeded · striped: refused · outlined: failed",
    parts: [
      ["successes", "ink"],
      ["refused", "striped"],
      ["failures", "outlined"],
    ],
    total: "calls",
  },
];
const [WIDTH, HEIGHT] = [240, 44];

export function drawNumbers({ series }) {
  put(document.querySelector("#numbers .body"), series, () => h("div", { class: "charts" }, CHARTS.map((chart) => figure(chart, series))));
}

function figure({ title, what, parts, total }, { minutes, sinceStart }) {
  const field = total ?? parts[0][0];
  const sum = minutes.reduce((all, minute) => all + minute[field], 0);
  return h(
    "figure",
    {},
    h("figcaption", {}, h("strong", {}, digits(sum)), h("span", {}, title), h("span", { class: "quiet" }, what)),
    bars(minutes, parts, `${title}: ${sum} in the last hour`),
    h("p", { class: "quiet axis" }, h("span", {}, "an hour ago"), h("span", {}, `${digits(sinceStart[field])} since the start`), h("span", {}, "now")),
  );
}

function bars(minutes, parts, label) {
  const most = Math.max(1, ...minutes.map((minute) => parts.reduce((all, [field]) => all + minute[field], 0)));
  const step = WIDTH / minutes.length;
  const drawing = s("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  const stripes = s("pattern", { id: "stripes", width: 3, height: 3, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("rect", { class: "stripe", width: 1.4, height: 3 }));
  if (parts.length > 1) drawing.append(s("defs", {}, stripes));
  drawing.append(s("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }));
  minutes.forEach((minute, at) => {
    let y = HEIGHT - 1;
    const numbers = parts.map(([field]) => `${minute[field]} ${field}`).join(", ");
    const bar = s("g", {}, s("title", {}, `${new Date(minute.atMs).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })}: ${numbers}`));
    bar.append(s("rect", { class: "reach", x: at * step, y: 0, width: step, height: HEIGHT }));
    for (const [field, kind] of parts) {
      if (minute[field] === 0) continue;
      const height = Math.max(1.5, (minute[field] / most) * (HEIGHT - 4));
      y -= height;
      bar.append(s("rect", { class: kind, x: at * step + 0.5, y, width: step - 1, height }));
    }
    drawing.append(bar);
  });
  return drawing;
}
