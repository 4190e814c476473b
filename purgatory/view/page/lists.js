// Groups, transactions and the log of what happened: lists of lines.

import { byId, made, tell } from "./elements.js";
import { counted, duration, shortMoment } from "./units.js";

const LINES = 100;

/** Write lines into a list, or a note in place of none. */
function write(list, note, isUnknown, lines) {
  const text = isUnknown ? "Not in this trace." : lines.length === 0 ? "None." : "";
  tell(note, text);
  while (list.children.length > lines.length) list.lastChild.remove();
  while (list.children.length < lines.length) list.append(made("li"));
  lines.forEach((line, index) => tell(list.children[index], line));
}

export class Lists {
  constructor(model) {
    this.model = model;
    this.said = byId("said");
    this.lastSaid = null;
  }

  tell() {
    const { groups, transactions, unknown, atUs } = this.model;
    write(byId("groups"), byId("groups-note"), unknown.has("groups"), groups.map((group) =>
      `${group.name}: ${group.state}, generation ${group.generation}, ${counted(group.members.length, "member")}, at broker ${group.broker}`));
    write(byId("transactions"), byId("transactions-note"), unknown.has("transactions"), transactions.map((one) =>
      `${one.id}, epoch ${one.epoch}: ${one.state}${one.since_us === null ? "" : ` for ${duration(Math.max(0, Math.floor(atUs) - one.since_us))}`}`));
    this.#tellSaid();
  }

  #tellSaid() {
    const { said } = this.model;
    const last = said.at(-1) ?? null;
    if (last === this.lastSaid && this.said.children.length === Math.min(LINES, said.length)) return;
    this.lastSaid = last;
    tell(byId("said-note"), said.length ? "" : "Nothing yet: this begins with the moment at which you began to look.");
    this.said.replaceChildren(...said.slice(-LINES).reverse().map(({ atUs, text, level }) => {
      const line = made("li");
      const at = made("time", shortMoment(atUs));
      line.append(at, made("span", text, level === "warning" ? "worry" : ""));
      return line;
    }));
  }
}
