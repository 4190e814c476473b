// The page: finds out what it shows, a cluster that runs or a trace, and draws it frame by frame.

import { Diagnosis } from "./diagnosis.js";
import { byId, newElement, setText } from "./elements.js";
import { Faults } from "./faults.js";
import { RequestTraces } from "./request_traces.js";
import { listenForKeys } from "./keys.js";
import { Lists } from "./lists.js";
import { LiveFeed } from "./live_feed.js";
import { Model } from "./model.js";
import { drawOverview } from "./overview.js";
import { Partitions } from "./partitions.js";
import { Rates } from "./rates.js";
import { ask } from "./requests.js";
import { ReplayControls } from "./replay_controls.js";
import { TraceFeed } from "./trace_feed.js";
import { number } from "./units.js";
import { WheelCards } from "./wheel_cards.js";

const WORDS_EVERY_MS = 250; // texts change slower than pictures: nobody reads faster

const WALKS = [
  [["ArrowRight", "ArrowLeft"], "to the mark that is due next, to the one before"],
  [["Home", "End"], "to the first mark due, to the last"],
  [["Escape"], "away from the marks"],
];

const model = new Model();
const cards = new WheelCards(model);
window.purgatoryView = { model, get drawn() { return cards.drawn; }, get circled() { return cards.circled; } };

function note(text) {
  setText(byId("note"), text ?? "");
  byId("note").hidden = !text;
}

function introduce(about) {
  document.title = `${about.name}: purgatories`;
  setText(byId("name"), about.name);
  byId("notes").replaceChildren(...about.notes.map((text) => newElement("p", text, "faint")));
  setText(byId("mode"), about.mode);
  if (about.mode !== "proxy") return;
  setText(byId("wheels-heading"), "Brokers");
  setText(document.querySelector(".skip"), "To the brokers");
  document.querySelectorAll(".of-cluster").forEach((place) => { place.hidden = true; });
}

async function fetchAbout() {
  for (;;) {
    try {
      const about = await ask("view/about");
      note(null);
      return about;
    } catch (error) {
      note(`No answer: ${error.message}. Trying again.`);
      await new Promise((done) => { setTimeout(done, 1000); });
    }
  }
}

/** Frames in the second before: of frames in which something was drawn. */
class FrameRate {
  #frames = [];

  count(nowMs) {
    this.#frames.push(nowMs);
    while (this.#frames[0] < nowMs - 1000) this.#frames.shift();
    model.framesPerSecond = this.#frames.length;
  }
}

function renderAll(parts, nowMs) {
  const { unshown, shown } = model;
  setText(byId("sampled"), unshown > 0
    ? `${number.format(shown)} of ${number.format(shown + unshown)} operations are shown: a sample, there are too many to draw.` : "");
  cards.render();
  parts.forEach((part) => part.render(nowMs));
}

function run(parts, advance) {
  const rate = new FrameRate();
  let lastMs = performance.now();
  let renderedMs = -Infinity;
  let renderedVersion = -1;
  let renderedUs = -1;
  const frame = (nowMs) => {
    advance(Math.min(200, Math.max(0, nowMs - lastMs)));
    lastMs = nowMs;
    if (cards.draw(nowMs)) rate.count(nowMs);
    const isNew = renderedVersion !== model.version || renderedUs !== model.atUs;
    if (nowMs - renderedMs >= WORDS_EVERY_MS && (isNew || nowMs - renderedMs > 1000)) {
      [renderedMs, renderedVersion, renderedUs] = [nowMs, model.version, model.atUs];
      renderAll(parts, nowMs);
    }
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}

async function start() {
  const about = await fetchAbout();
  introduce(about);
  const isLive = about.mode !== "trace";
  model.logsUnanswered = isLive;
  const traces = new RequestTraces(model, isLive);
  const parts = [new Lists(model), new Faults(model, isLive && about.may_change)];
  if (about.mode !== "proxy") parts.push(new Diagnosis(model), new Partitions(model), traces);
  const ofWheels = about.mode === "proxy" ? [] : [["In a wheel that has the focus (Tab leads to it):", WALKS]];
  if (isLive) {
    listenForKeys([], ofWheels);
    model.rates = new Rates(model);
    parts.push(model.rates);
    run(parts, () => {});
    await new LiveFeed(model, cards, note).run();
    return;
  }
  const feed = new TraceFeed(model, cards, about, note);
  const controls = new ReplayControls(feed, traces, cards, about);
  drawOverview(about);
  listenForKeys(controls.keys(), ofWheels);
  if (!controls.seekAddress()) await controls.seekWorst();
  run(parts, (elapsedMs) => {
    feed.advance(elapsedMs);
    controls.render(performance.now());
  });
}

start();
