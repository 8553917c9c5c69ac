// Creates and updates elements. Strings are always inserted as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

// An element: `h("p", { class: "quiet", onclick: f }, "text", child)`.
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// An SVG element.
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// A name from outside: it is isolated from the text direction of the line, and can wrap.
export function name(text, attributes) {
  return h("bdi", { class: "name", ...attributes }, shown(text));
}

// Shows invisible characters as escape sequences.
export function shown(text) {
  return String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (sign) =>
    `\\u${sign.codePointAt(0).toString(16).padStart(4, "0")}`,
  );
}

const rendered = new WeakMap();

// Shows these items in this order. Only changed items are created again, so that focus, open details and scroll position
// stay.
export function list(parent, items, key, make) {
  const before = rendered.get(parent) ?? new Map();
  const after = new Map();
  let at = parent.firstChild;
  for (const item of items) {
    const id = key(item);
    if (after.has(id)) continue;
    const print = JSON.stringify(item);
    let entry = before.get(id);
    if (entry?.print !== print) {
      const element = make(item);
      if (entry) {
        if (at === entry.element) at = element;
        swap(entry.element, element);
      }
      entry = { print, element };
    }
    after.set(id, entry);
    if (entry.element === at) at = at.nextSibling;
    else parent.insertBefore(entry.element, at);
  }
  for (const [id, entry] of before) if (!after.has(id)) entry.element.remove();
  rendered.set(parent, after);
}

// Replaces an element and keeps the focus and open details.
function swap(old, fresh) {
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  const handle = focused?.dataset?.hand;
  for (const open of old.querySelectorAll("details[open][data-hand]")) {
    const same = fresh.querySelector(`details[data-hand="${CSS.escape(open.dataset.hand)}"]`);
    if (same) same.open = true;
  }
  old.replaceWith(fresh);
  if (!focused) return;
  const next = focused === old ? fresh : handle && fresh.querySelector(`[data-hand="${CSS.escape(handle)}"]`);
  (next || fresh).focus({ preventScroll: true });
}

// Replaces the content if the state has changed.
export function put(parent, state, make) {
  const print = JSON.stringify(state);
  if (rendered.get(parent) === print) return;
  rendered.set(parent, print);
  const fresh = h(parent.tagName, {});
  fresh.append(...[make()].flat(Infinity).filter(Boolean));
  const focused = parent.contains(document.activeElement) ? document.activeElement.dataset.hand : null;
  parent.replaceChildren(...fresh.childNodes);
  if (focused) parent.querySelector(`[data-hand="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

// A modal dialog. The focus returns when it is closed.
export function dialog(title, ...children) {
  const place = document.getElementById("dialog");
  const close = h("button", { type: "button", class: "plain close", "aria-label": "Close", onclick: () => place.close() }, "×");
  place.replaceChildren(h("header", {}, h("h2", { id: "dialog-title" }, title), close), ...children.flat());
  if (!place.open) place.showModal();
  return place;
}

// Shows a short message about the last action.
export function showStatus(text, tone = "plain") {
  const place = document.getElementById("status-message");
  const note = h("p", { class: `note ${tone}` }, text);
  place.replaceChildren(note);
  setTimeout(() => note.remove(), 6000);
}

// A button that is disabled while its action runs.
export function button(label, act, attributes) {
  const element = h("button", { type: "button", ...attributes }, label);
  element.addEventListener("click", async () => {
    element.disabled = true;
    try {
      await act();
    } finally {
      element.disabled = false;
    }
  });
  return element;
}

// A table whose rows become cards on a narrow screen. Each cell has the title of its column.
export function table(columns, caption) {
  const body = h("tbody", {});
  const head = h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.class }, column.title)));
  const element = h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, head), body);
  const row = (attributes, ...cells) =>
    h("tr", { tabindex: "-1", "data-row": true, ...attributes }, cells.map((cell, at) => h("td", { class: columns[at].class, "data-title": columns[at].title }, cell)));
  return { element, body, row };
}

// Lists with more rows are folded.
const FEW = 10;
// The number of rows per page of an unfolded list.
const PAGE = 50;

// A long list: the first ten rows and a button that shows all of them, in pages where there are very many.
export function fold(what, redraw) {
  let isOpen = false;
  let page = 0;
  const place = h("p", { class: "pager" });
  const to = (open, next) => () => {
    [isOpen, page] = [open, next];
    redraw();
  };
  return {
    place,
    first() {
      page = 0;
    },
    // The rows to show. `more` is true if these are only the newest of a longer list.
    cut(items, more = false) {
      const pages = Math.max(1, Math.ceil(items.length / PAGE));
      page = Math.min(page, pages - 1);
      place.hidden = items.length <= FEW;
      put(place, [isOpen, page, pages, items.length, more], () => {
        if (!isOpen) return h("button", { type: "button", "data-hand": "unfold", onclick: to(true, 0) }, `Show ${more ? "the newest" : "all"} ${items.length} ${what}`);
        return [
          pages > 1 && [
            h("button", { type: "button", class: "plain", "data-hand": "back", disabled: page === 0, onclick: to(true, page - 1) }, "‹ Previous"),
            h("span", { class: "quiet" }, `${page * PAGE + 1}–${Math.min(items.length, (page + 1) * PAGE)} of ${items.length} ${what}`),
            h("button", { type: "button", class: "plain", "data-hand": "on", disabled: page === pages - 1, onclick: to(true, page + 1) }, "Next ›"),
          ],
          h("button", { type: "button", class: "plain", "data-hand": "unfold", onclick: to(false, 0) }, "Show fewer"),
        ];
      });
      return isOpen ? items.slice(page * PAGE, (page + 1) * PAGE) : items.slice(0, FEW);
    },
  };
}
