// Groups, transactions and the log of what happened: lists of lines.

import { byId, newElement, setText } from "./elements.js";
import { counted, duration, shortMoment } from "./units.js";

const LINES = 100;

/** Write lines into a list, or a note in place of none. */
function write(list, note, isUnknown, lines) {
  const text = isUnknown ? "Not in this trace." : lines.length === 0 ? "None." : "";
  setText(note, text);
  while (list.children.length > lines.length) list.lastChild.remove();
  while (list.children.length < lines.length) list.append(newElement("li"));
  lines.forEach((line, index) => setText(list.children[index], line));
}

export class Lists {
  constructor(model) {
    this.model = model;
    this.log = byId("log");
    this.lastLine = null;
  }

  render() {
    const { groups, transactions, unknown, atUs } = this.model;
    write(byId("groups"), byId("groups-note"), unknown.has("groups"), groups.map((group) =>
      `${group.name}: ${group.state}, generation ${group.generation}, ${counted(group.members.length, "member")}, at broker ${group.broker}`));
    write(byId("transactions"), byId("transactions-note"), unknown.has("transactions"), transactions.map((one) =>
      `${one.id}, epoch ${one.epoch}: ${one.state}${one.since_us === null ? "" : ` for ${duration(Math.max(0, Math.floor(atUs) - one.since_us))}`}`));
    this.#renderLog();
  }

  #renderLog() {
    const { log } = this.model;
    const last = log.at(-1) ?? null;
    if (last === this.lastLine && this.log.children.length === Math.min(LINES, log.length)) return;
    this.lastLine = last;
    setText(byId("log-note"), log.length ? "" : "Nothing yet: this begins with the moment at which you began to look.");
    this.log.replaceChildren(...log.slice(-LINES).reverse().map(({ atUs, text, level }) => {
      const line = newElement("li");
      const at = newElement("time", shortMoment(atUs));
      line.append(at, newElement("span", text, level === "warning" ? "worry" : ""));
      return line;
    }));
  }
}
