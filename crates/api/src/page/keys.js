// Keyboard shortcuts for all actions. They are disabled in text fields.

import { dialog, h } from "./dom.js";

const KEYS = [
  ["/", "search the calls"],
  ["j  k", "next and previous row"],
  ["Enter", "open the row"],
  ["a", "approve the selected request once"],
  ["d", "deny it"],
  ["t", "light, dark, or the system setting"],
  ["Esc", "close"],
  ["?", "this list"],
];

export function help() {
  const rows = KEYS.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)]);
  dialog("Keys", h("dl", { class: "keys" }, rows));
}

const rows = () => [...document.querySelectorAll("[data-row]")].filter((row) => row.offsetParent !== null);

function move(by) {
  const all = rows();
  if (all.length === 0) return;
  const held = document.activeElement?.closest?.("[data-row]");
  const at = held ? all.indexOf(held) + by : by > 0 ? 0 : all.length - 1;
  const row = all[Math.max(0, Math.min(all.length - 1, at))];
  row.focus();
  row.scrollIntoView({ block: "nearest" });
}

export function keys({ theme }) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("dialog").open) return;
    if (event.target.closest("input, textarea, select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const row = event.target.closest("[data-row]");
    const press = (hand) => {
      const button = row?.querySelector(`[data-hand="${hand}"]`);
      button?.click();
      return Boolean(button);
    };
    const act = {
      "/": () => document.getElementById("search").focus(),
      j: () => move(1),
      k: () => move(-1),
      a: () => press("once"),
      d: () => press("deny"),
      t: theme,
      "?": help,
      Enter: () => event.target === row && press("open"),
    }[event.key];
    if (act && act() !== false) event.preventDefault();
  });
}
