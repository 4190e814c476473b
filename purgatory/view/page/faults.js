// Active faults, and, of a cluster that runs, buttons that inject one.

import { button, byId, newElement, setText } from "./elements.js";
import { ask } from "./requests.js";
import { shortMoment } from "./units.js";

const NONE_FITS = "No fault fits now.";

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
    this.offered = "";
    this.brokers = "";
  }

  async #offer() {
    try {
      const { faults } = await ask("view/faults");
      const offered = JSON.stringify(faults);
      if (offered === this.offered) return;
      this.offered = offered;
      this.#show(faults);
      if (faults.length === 0) setText(this.answer, NONE_FITS);
      else if (this.answer.textContent === NONE_FITS) setText(this.answer, "");
    } catch (error) {
      setText(this.answer, `No faults to inject: ${error.message}`);
    }
  }

  /** A button for each fault, folded away by broker: there are a dozen kinds. */
  #show(faults) {
    const places = new Map();
    for (const { text, ask: body } of faults) {
      const name = body.broker === undefined ? "the cluster" : `broker ${body.broker}`;
      if (!places.has(name)) places.set(name, newElement("div", undefined, "row"));
      const press = { method: "POST", body: JSON.stringify(body) };
      places.get(name).append(button(text, () => this.#change("faults", press, `Done: ${text}`)));
    }
    byId("press-list").replaceChildren(...[...places].map(([name, place], index) => {
      const folded = newElement("details");
      folded.open = index === 0;
      folded.append(newElement("summary", `At ${name}`), place);
      return folded;
    }));
  }

  async #change(path, options, done = "Healed.") {
    try {
      // JSON, even of nothing: pages of others can't send it, so servers take nothing else.
      await ask(path, {}, { ...options, headers: { "Content-Type": "application/json" } });
      setText(this.answer, done);
    } catch (error) {
      setText(this.answer, `Not done: ${error.message}`);
    }
    this.#offer();
  }

  render() {
    const brokers = [...this.model.brokers.keys()].join();
    if (this.mayChange && brokers !== this.brokers) {
      this.brokers = brokers; // a proxy may learn of one later
      this.#offer();
    }
    const active = this.model.faults.filter((fault) => fault.active);
    const dead = this.mayChange ? [...this.model.brokers.values()].filter((broker) => !broker.alive) : [];
    setText(this.note, this.model.unknown.has("faults") ? "Not in this trace." : active.length ? "" : "None is in force.");
    byId("heal-all").disabled = active.length === 0;
    // Buttons are left alone while nothing changed: one that has the focus must keep it.
    const now = JSON.stringify([active, dead.map((broker) => broker.id)]);
    if (now === this.known) return;
    this.known = now;
    this.place.replaceChildren(...active.map((fault) => this.#line(fault)), ...dead.map((one) => this.#dead(one)));
  }

  #line({ number, text, since_us: since, until_us: until }) {
    const line = newElement("li", undefined, "row");
    const end = until === null ? "" : `, until ${shortMoment(until)}`;
    line.append(newElement("span", `${text} (since ${shortMoment(since)}${end})`));
    if (this.mayChange) line.append(button("Heal", () => this.#change(`faults/${number}`, { method: "DELETE" })));
    return line;
  }

  #dead({ id }) {
    const line = newElement("li", undefined, "row");
    line.append(newElement("span", `broker ${id} is dead`));
    line.append(button(`Revive broker ${id}`, () => this.#change(`brokers/${id}/revive`, { method: "POST" }, `Done: broker ${id} was revived`)));
    return line;
  }
}
