// Faults that are in force, and, of a cluster that runs, faults to press.

import { button, byId, made, tell } from "./elements.js";
import { ask } from "./requests.js";
import { shortMoment } from "./units.js";

export class Faults {
  constructor(model, mayChange) {
    this.model = model;
    this.mayChange = mayChange;
    this.place = byId("faults");
    this.note = byId("faults-note");
    this.answer = byId("faults-answer");
    byId("press").hidden = !mayChange;
    byId("heal-all").addEventListener("click", () => this.#change("faults", { method: "DELETE" }));
    this.known = "";
    if (mayChange) this.#offer();
  }

  async #offer() {
    try {
      const { faults } = await ask("view/faults");
      byId("press-list").replaceChildren(...faults.map(({ text, ask: body }) => button(text, () => this.#change("faults", {
        method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
      }, text))));
      tell(this.answer, faults.length ? "" : "No fault fits this cluster now.");
    } catch (error) {
      tell(this.answer, `No faults to press: ${error.message}`);
    }
  }

  async #change(path, options, text = "") {
    try {
      await ask(path, {}, options);
      tell(this.answer, options.method === "DELETE" ? "Healed." : `Done: ${text}`);
    } catch (error) {
      tell(this.answer, `Not done: ${error.message}`);
    }
    this.#offer();
  }

  tell() {
    const active = this.model.faults.filter((fault) => fault.active);
    const dead = this.mayChange ? [...this.model.brokers.values()].filter((broker) => !broker.alive) : [];
    tell(this.note, this.model.unknown.has("faults") ? "Not in this trace." : active.length ? "" : "None is in force.");
    byId("heal-all").disabled = active.length === 0;
    // Buttons are left alone while nothing changed: one that has the focus must keep it.
    const now = JSON.stringify([active, dead.map((broker) => broker.id)]);
    if (now === this.known) return;
    this.known = now;
    this.place.replaceChildren(...active.map((fault) => this.#line(fault)), ...dead.map((one) => this.#dead(one)));
  }

  #line({ number, text, since_us: since, until_us: until }) {
    const line = made("li", undefined, "row");
    const end = until === null ? "" : `, until ${shortMoment(until)}`;
    line.append(made("span", `${text} (since ${shortMoment(since)}${end})`));
    if (this.mayChange) line.append(button("Heal", () => this.#change(`faults/${number}`, { method: "DELETE" })));
    return line;
  }

  #dead({ id }) {
    const line = made("li", undefined, "row");
    line.append(made("span", `broker ${id} is dead`));
    line.append(button(`Revive broker ${id}`, () => this.#change(`brokers/${id}/revive`, { method: "POST" }, `broker ${id} was revived`)));
    return line;
  }
}
