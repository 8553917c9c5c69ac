// Actions of the operator. Each needs the admin token, which is requested once.

import { Refused, isAdmin, token } from "./api.js";
import { dialog, h, showStatus } from "./dom.js";

let after = () => {};
export const afterEveryAction = (then) => {
  after = then;
};

// Runs an action and shows its result.
export async function act(action, done) {
  if (!token.get() && !(await unlock("Changing anything requires the admin token."))) return;
  try {
    const answer = await action();
    showStatus(typeof done === "function" ? done(answer) : done, "good");
  } catch (error) {
    if (error instanceof Refused && error.status === 401) {
      token.clear();
      if (await unlock("The gateway no longer accepts this token.")) return act(action, done);
      return;
    }
    showStatus(`Not done: ${error.message}`, "bad");
  }
  after();
}

// Asks for a token until it is valid or the user cancels.
export function unlock(reason, isRight = isAdmin) {
  return new Promise((resolve) => {
    const wrong = h("p", { class: "bad", role: "alert", hidden: true }, "This is not the right token.");
    const field = h("input", { type: "password", id: "admin-token", autocomplete: "off", spellcheck: "false", required: true, "aria-label": "Admin token" });
    const form = h(
      "form",
      { class: "ask" },
      h("p", {}, reason),
      h("p", { class: "quiet" }, "The token is in the state folder, in the file ", h("code", {}, "admin-token"), ", or in STEADFAST_ADMIN_TOKEN. This tab forgets it when you close it."),
      h("p", { class: "line" }, field, h("button", { type: "submit", class: "strong" }, "Unlock")),
      wrong,
    );
    let given = false;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (!(await isRight(text).catch(() => false))) {
        wrong.hidden = false;
        field.select();
        return;
      }
      token.set(text);
      given = true;
      place.close();
    });
    const place = dialog("Admin token", form);
    const closed = () => {
      // The close event of an earlier dialog may arrive only now.
      if (place.open && place.contains(form)) return;
      place.removeEventListener("close", closed);
      resolve(given);
      after();
    };
    place.addEventListener("close", closed);
    field.focus();
  });
}
