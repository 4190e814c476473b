// Keys: they act unless somebody types, or a control that has the focus needs them itself.

import { byId, newDialog, newElement } from "./elements.js";

const TYPES = "input:not([type='range'], [type='checkbox']), select, textarea";
const PRESSED_BY_SPACE = "button, summary, a, input[type='checkbox']";
const SIGNS = { " ": "Space", ArrowRight: "→", ArrowLeft: "←", Escape: "Esc" };

/** A list of keys and what they do. */
function listOf(rows) {
  const list = newElement("dl");
  list.append(...rows.flatMap(([keys, text]) => {
    const term = newElement("dt");
    term.append(...keys.flatMap((key) => [newElement("kbd", SIGNS[key] ?? key), " "]));
    return [term, newElement("dd", text)];
  }));
  return list;
}

/**
 * @param rows of keys, what they do in words, and an action for each, or one for all
 * @param more what else the help has, as pairs of a text and rows without actions
 */
export function listenForKeys(rows, more = []) {
  const show = () => help.showModal();
  const own = [...rows, [["?"], "these keys", show]];
  const others = more.flatMap(([text, others]) => [newElement("p", text), listOf(others)]);
  const help = newDialog("keys", "Keys", [listOf(own), ...others], { Close: "" });
  byId("show-help")?.addEventListener("click", () => byId("help").showModal());
  byId("show-keys").addEventListener("click", show);
  const actions = Object.fromEntries(own.flatMap(([keys, , ...acts]) =>
    keys.map((key, index) => [key, acts[index] ?? acts[0]])));
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
    const { target } = event;
    if (target instanceof Element && target.matches(TYPES)) return;
    if (event.key === " " && target instanceof Element && target.matches(PRESSED_BY_SPACE)) return;
    const act = actions[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}
