// The controls of a trace: the slider, the buttons, the keys, the bookmarks, and the moment in the address.

import { button, byId, newElement, setText } from "./elements.js";
import { ask } from "./requests.js";
import { moment } from "./units.js";

const SEARCHING = "still searching"; // the server's words
const SPEEDS = [0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 25, 50, 100];
const ADDRESS_EVERY_MS = 1000;
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 4000;

export class ReplayControls {
  constructor(feed, traces, cards, about) {
    Object.assign(this, { feed, traces, cards, about });
    this.slider = byId("slider");
    this.clock = byId("clock");
    this.speed = byId("speed");
    this.play = byId("play");
    this.writtenAt = -Infinity;
    this.written = "";
    byId("timeline").hidden = false;
    this.#prepare();
    this.#listen();
    this.#offerBookmarks();
  }

  #prepare() {
    this.slider.min = this.about.begin_us;
    this.slider.max = this.about.end_us;
    this.slider.step = 1;
    this.speed.replaceChildren(...SPEEDS.map((speed) => {
      const option = newElement("option", `${speed}×`);
      option.value = speed;
      return option;
    }));
    this.speed.value = 1;
  }

  #listen() {
    this.slider.addEventListener("input", () => this.feed.seek(Number(this.slider.value)));
    this.speed.addEventListener("change", () => { this.feed.speed = Number(this.speed.value); });
    this.play.addEventListener("click", () => this.toggle());
    byId("next").addEventListener("click", () => this.feed.stepForward());
    byId("previous").addEventListener("click", () => this.feed.stepBack());
    byId("to-begin").addEventListener("click", () => this.feed.seek(this.about.begin_us));
    byId("to-end").addEventListener("click", () => this.feed.seek(this.about.end_us));
    byId("record").addEventListener("submit", (event) => { event.preventDefault(); this.#toRecord(); });
    byId("trace-follow").addEventListener("click", () => this.traces.followLatest());
    addEventListener("hashchange", () => this.seekAddress());
  }

  /** Go to the moment that the address names, or stay. */
  seekAddress() {
    const at = new URLSearchParams(location.hash.slice(1)).get("at");
    if (at === null || at === this.written || !/^\d+$/.test(at)) return false;
    this.written = at;
    this.feed.playing = false;
    this.feed.seek(Number(at));
    return true;
  }

  toggle() {
    if (!this.feed.playing && this.feed.shownUs >= this.about.end_us) this.feed.seek(this.about.begin_us);
    this.feed.playing = !this.feed.playing;
  }

  faster(by) {
    const at = Math.min(SPEEDS.length - 1, Math.max(0, SPEEDS.indexOf(this.feed.speed) + by));
    this.feed.speed = SPEEDS[at];
    this.speed.value = this.feed.speed;
  }

  /** The effects of keys here, as rows for `listenForKeys`. */
  keys() {
    return [
      [[" "], "play, pause", () => this.toggle()],
      [["ArrowRight", "."], "to the next event", () => this.feed.stepForward()],
      [["ArrowLeft", ","], "to the event before", () => this.feed.stepBack()],
      [["+", "="], "faster", () => this.faster(1)],
      [["-"], "slower", () => this.faster(-1)],
      [["Home", "End"], "to the beginning, to the end", () => this.feed.seek(this.about.begin_us),
        () => this.feed.seek(this.about.end_us)],
    ];
  }

  render(nowMs) {
    const shown = Math.floor(this.feed.shownUs);
    setText(this.clock, moment(shown - this.about.begin_us));
    if (Number(this.slider.value) !== shown) this.slider.value = shown;
    this.slider.setAttribute("aria-valuetext", moment(shown - this.about.begin_us));
    setText(this.play, this.feed.playing ? "Pause" : "Play");
    this.#writeAddress(String(shown), nowMs);
  }

  /** The address leads to this moment. Browsers allow only so many changes of it in a while. */
  #writeAddress(at, nowMs) {
    if (at === this.written || nowMs - this.writtenAt < ADDRESS_EVERY_MS) return;
    this.writtenAt = nowMs;
    this.written = at;
    history.replaceState(null, "", `#at=${at}`);
  }

  /** Offer the bookmarks, and ask again for as long as the server looks for one. */
  async #offerBookmarks(pause = FIRST_PAUSE_MS, offered = "") {
    const place = byId("bookmarks");
    let now;
    try {
      const { bookmarks } = await ask("view/bookmarks");
      now = JSON.stringify(bookmarks);
      if (now !== offered) place.replaceChildren(...bookmarks.map((bookmark) => this.#bookmark(bookmark)));
      if (!bookmarks.some((bookmark) => bookmark.why_not === SEARCHING)) return;
    } catch (error) {
      place.replaceChildren(newElement("span", `No bookmarks: ${error.message}`, "faint"));
    }
    setTimeout(() => this.#offerBookmarks(Math.min(LONGEST_PAUSE_MS, pause * 2), now), pause);
  }

  /** Open at the worst moment of the run, or at its beginning. */
  async seekWorst() {
    const worst = this.about.overview?.worst ?? null;
    if (worst === null) await this.feed.seek(this.about.begin_us);
    else await this.#show(worst);
  }

  /** Go to a moment, and circle the operation that it is about. */
  async #show({ at_us: at, text, operation }) {
    this.feed.playing = false;
    setText(byId("bookmark-note"), text ?? "");
    await this.feed.seek(at);
    this.cards.choose(operation ?? null);
  }

  #bookmark(entry) {
    const { name, at_us: at, text, why_not: whyNot } = entry;
    const bookmark = button(`To ${name}`, () => this.#show(entry));
    bookmark.disabled = at === null;
    if (at !== null) return bookmark;
    const reason = newElement("span", undefined, "row");
    reason.append(bookmark, newElement("span", whyNot ?? text ?? "there is none", "faint"));
    return reason;
  }

  async #toRecord() {
    const form = new FormData(byId("record"));
    const answer = byId("bookmark-note");
    try {
      const found = await this.traces.show(form.get("topic"), form.get("partition"), form.get("offset"));
      const at = (found.stages.find((stage) => stage.name === "appended") ?? found.stages[0]).at_us;
      this.feed.playing = false;
      await this.feed.seek(at);
      setText(answer, `${found.title}: appended here; its trace is drawn below.`);
    } catch (error) {
      setText(answer, error.message);
    }
  }
}
