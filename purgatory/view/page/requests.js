// Asking the server, with the page's token where it has one.
//
// The token comes from the address (#token=...), from where it is taken at once so that no copied
// link carries it, or is typed in when the server asks for one. It lives as long as the tab.

import { newDialog, newElement } from "./elements.js";

const KEY = "purgatory-token";

function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (!given.has("token")) return;
  sessionStorage.setItem(KEY, given.get("token"));
  given.delete("token");
  history.replaceState(null, "", `${location.pathname}${location.search}#${given}`);
}

fromAddress();

let asked = null;

/** Ask for the token, once for all who wait for it; false if it is refused to give. */
function askForToken() {
  asked ??= new Promise((done) => {
    const label = newElement("label", "The token that the server was started with ");
    const field = newElement("input");
    Object.assign(field, { type: "password", autocomplete: "off" });
    label.append(field);
    const dialog = newDialog("token", "A token is needed", [label], { "Go on": "give", Cancel: "" });
    dialog.addEventListener("close", () => {
      asked = null;
      dialog.remove();
      const given = dialog.returnValue === "give" && field.value.trim() !== "";
      if (given) sessionStorage.setItem(KEY, field.value.trim());
      done(given);
    }, { once: true });
    dialog.showModal();
  });
  return asked;
}

/** The answer to a request; with one that is refused for want of a token, the user is asked. */
export async function send(path, options = {}) {
  for (;;) {
    const headers = new Headers(options.headers);
    const token = sessionStorage.getItem(KEY);
    if (token) headers.set("Authorization", `Bearer ${token}`);
    const answer = await fetch(path, { cache: "no-store", ...options, headers });
    if (answer.status !== 401 || !(await askForToken())) return answer;
  }
}

async function errorOf(answer) {
  try {
    const body = await answer.json();
    return body.error ?? body.message ?? `the server answers ${answer.status}`;
  } catch {
    return `the server answers ${answer.status}`;
  }
}

/** The body of a response, as JSON. Throws an Error with its reason. */
export async function ask(path, parameters = {}, options = {}) {
  const query = new URLSearchParams(parameters).toString();
  const answer = await send(query ? `${path}?${query}` : path, options);
  if (!answer.ok) throw Object.assign(new Error(await errorOf(answer)), { status: answer.status });
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}
