// The changes of a cluster that runs, as they come: server-sent events, read by fetch() since an
// EventSource can't carry a token.

import { send } from "./requests.js";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8000;
const SILENT_MS = 45_000; // three times as long as the server lets it be silent

export class LiveFeed {
  /** @param note called with a text that says how the feed is doing, or with null: all is well */
  constructor(model, drawings, note) {
    Object.assign(this, { model, drawings, note });
  }

  /** Read for ever. */
  async run() {
    let pause = FIRST_PAUSE_MS;
    for (;;) {
      try {
        await this.#read(() => { pause = FIRST_PAUSE_MS; });
        this.note("The stream has ended. The picture is old; trying again.");
      } catch (error) {
        this.note(`No connection: ${error.message}. The picture is old; trying again.`);
      }
      await new Promise((done) => { setTimeout(done, pause); });
      pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
    }
  }

  async #read(wasRead) {
    const stopped = new AbortController();
    let silence = setTimeout(() => stopped.abort(), SILENT_MS);
    try {
      const answer = await send("view/live", { signal: stopped.signal, headers: { Accept: "text/event-stream" } });
      if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const events = new EventReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(() => stopped.abort(), SILENT_MS);
        events.read(value).forEach(([name, data]) => this.#take(name, data));
        wasRead();
      }
    } finally {
      clearTimeout(silence);
      stopped.abort();
    }
  }

  #take(name, data) {
    const batch = JSON.parse(data);
    if (name === "state") {
      this.model.apply(batch);
      this.drawings.settle();
      this.note(null);
    } else if (name === "changes") {
      const unshown = batch.pending === undefined ? 0 : Math.max(0, batch.pending - batch.shown);
      this.model.applyChanges(batch.changes, batch.until_us, unshown);
    }
  }
}

/** Cuts a stream of text into events. */
export class EventReader {
  #rest = "";

  /** The events, as pairs of name and data, that are whole with this piece. */
  read(text) {
    const blocks = (this.#rest + text).replaceAll("\r\n", "\n").split("\n\n");
    this.#rest = blocks.pop();
    return blocks.map(eventOf).filter(([, data]) => data !== "");
  }
}

function eventOf(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return [name, data.join("\n")];
}
