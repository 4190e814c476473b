// Keys: they act unless somebody types, or a control that has the focus needs them itself.

import { byId } from "./elements.js";

const TYPES = "input:not([type='range'], [type='checkbox']), select, textarea";
const PRESSED_BY_SPACE = "button, summary, a, input[type='checkbox']";

export function listenForKeys(actions) {
  const help = byId("keys");
  byId("show-help")?.addEventListener("click", () => byId("help").showModal());
  byId("show-keys").addEventListener("click", () => help.showModal());
  const all = { ...actions, "?": () => help.showModal() };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
    const { target } = event;
    if (target instanceof Element && target.matches(TYPES)) return;
    if (event.key === " " && target instanceof Element && target.matches(PRESSED_BY_SPACE)) return;
    const act = all[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}
