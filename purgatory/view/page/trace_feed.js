// The moments of a trace: the state at any of them, and the changes from there on, fetched ahead.

import { ask } from "./requests.js";

const AHEAD_MS = 2500; // of the watcher's time: so much is fetched before it is needed
const LEAST_WINDOW_US = 50_000;

export class TraceFeed {
  /**
   * @param about as on the wire
   * @param note called with a text that says what is amiss, or with null: all is well
   */
  constructor(model, drawings, about, note) {
    Object.assign(this, { model, drawings, about, note });
    this.playing = false;
    this.speed = 1;
    this.turn = 0; // of the moment shown: an answer that comes after another was asked for is void
    this.#forget(about.begin_us);
  }

  get shownUs() {
    return this.atUs;
  }

  #forget(atUs) {
    this.atUs = atUs;
    this.ahead = [];
    this.aheadUs = atUs;
    this.fetching = false;
  }

  /** Show the state at a moment. */
  async seek(atUs) {
    const turn = ++this.turn;
    const wanted = Math.round(Math.min(this.about.end_us, Math.max(this.about.begin_us, atUs)));
    // The slider stands where it was put, whatever the answer takes.
    this.#forget(wanted);
    this.fetching = true;
    try {
      const state = await ask("view/state", { at_us: wanted });
      if (turn !== this.turn) return;
      this.model.log.length = 0;
      this.model.apply(state);
      this.drawings.settle();
      this.note(null);
    } catch (error) {
      if (turn === this.turn) this.#failed(error);
    }
    if (turn === this.turn) this.fetching = false;
  }

  /** Go on by the watcher's time, in milliseconds, and fetch what comes next. */
  advance(elapsedMs) {
    if (!this.playing || this.fetchingState()) return;
    const wanted = this.atUs + elapsedMs * 1000 * this.speed;
    this.#show(Math.min(wanted, this.aheadUs));
    if (this.atUs >= this.about.end_us) this.playing = false;
    else if (this.aheadUs - this.atUs < AHEAD_MS * 500 * this.speed) this.#fetchAhead();
  }

  /** Whether a state is awaited, before which nothing can be shown. */
  fetchingState() {
    return this.fetching && this.aheadUs === this.atUs && this.ahead.length === 0;
  }

  #show(untilUs) {
    // Fractions of a microsecond add up at a hundredth of the speed, so the time keeps them.
    const moment = Math.floor(untilUs);
    let count = 0;
    while (count < this.ahead.length && this.ahead[count].at_us <= moment) count += 1;
    this.model.applyChanges(this.ahead.splice(0, count), moment);
    this.atUs = untilUs;
  }

  async #fetchAhead() {
    if (this.fetching || this.aheadUs >= this.about.end_us) return;
    const turn = this.turn;
    this.fetching = true;
    const window = Math.max(LEAST_WINDOW_US, AHEAD_MS * 1000 * this.speed);
    try {
      await this.#fetchUntil(Math.min(this.about.end_us, Math.round(this.aheadUs + window)), turn);
    } catch (error) {
      if (turn === this.turn) this.#failed(error);
    }
    if (turn === this.turn) this.fetching = false;
  }

  async #fetchUntil(untilUs, turn) {
    const asked = { from_us: Math.floor(this.aheadUs), until_us: untilUs };
    const batch = await ask("view/changes", asked);
    if (turn !== this.turn) return;
    this.ahead.push(...batch.changes);
    this.aheadUs = batch.until_us;
    this.note(null);
  }

  /** Go to the next moment at which something changes. */
  async stepForward() {
    const turn = this.#halt();
    try {
      const { at_us: next } = await ask("view/next", { after_us: Math.floor(this.atUs) });
      if (turn !== this.turn || next === null) return;
      while (this.aheadUs < next && turn === this.turn) await this.#fetchUntil(next, turn);
      if (turn === this.turn) this.#show(next);
    } catch (error) {
      if (turn === this.turn) this.#failed(error);
    }
  }

  /** Go back to the last moment before this one at which something changed. */
  async stepBack() {
    const turn = this.#halt();
    try {
      const { at_us: previous } = await ask("view/previous", { before_us: Math.floor(this.atUs) });
      if (turn === this.turn && previous !== null) await this.seek(previous);
    } catch (error) {
      if (turn === this.turn) this.#failed(error);
    }
  }

  #halt() {
    this.playing = false;
    this.fetching = false;
    return ++this.turn;
  }

  #failed(error) {
    this.playing = false;
    this.note(`No answer: ${error.message}.`);
  }
}
