// Draws what `state` tells, once a second. All that comes from there is set as text, never as markup.

const EVERY_MS = 1000;
const about = document.getElementById("about");
const place = document.getElementById("purgatories");
const pause = document.getElementById("pause");
let paused = false;

const number = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

function made(name, text, className) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function duration(ms) {
  if (ms === null) return "-";
  if (Math.abs(ms) < 1000) return `${short.format(ms)} ms`;
  if (Math.abs(ms) < 120000) return `${short.format(ms / 1000)} s`;
  return `${short.format(ms / 60000)} min`;
}

function operations(count) {
  return count === 1 ? "1 operation waits" : `${number.format(count)} operations wait`;
}

function table(caption, heads, rows) {
  const wide = made("div", undefined, "wide");
  wide.tabIndex = 0;
  wide.setAttribute("role", "region");
  wide.setAttribute("aria-label", caption);
  const drawn = made("table");
  drawn.append(made("caption", caption));
  const head = drawn.createTHead().insertRow();
  heads.forEach(([text, isNumber]) => {
    const cell = made("th", text, isNumber ? "number" : "");
    cell.scope = "col";
    head.append(cell);
  });
  const body = drawn.createTBody();
  rows.forEach((row) => {
    const line = body.insertRow();
    row.forEach((text, index) => line.append(made("td", text, heads[index][1] ? "number" : "")));
  });
  wide.append(drawn);
  return wide;
}

function figures(pairs) {
  const list = made("dl");
  pairs.forEach(([name, value]) => {
    const pair = made("div");
    pair.append(made("dt", name), made("dd", value));
    list.append(pair);
  });
  return list;
}

function worries(one) {
  const found = [];
  if (one.pending_limit !== null && one.pending >= one.pending_limit) {
    found.push("It is full: new operations are refused.");
  }
  if (one.foreign_locks.length) {
    found.push(`${operations(one.foreign_locks.length)} for a lock that others hold.`);
  }
  if (one.missed_wakeups) {
    found.push(`${number.format(one.missed_wakeups)} conditions held, and no event had said so.`);
  }
  if (one.pending && one.reaper && !one.reaper.alive) {
    found.push("Nothing moves its timer: operations do not expire.");
  } else if (one.pending && one.reaper && one.reaper.came_round_ms_ago > 2000) {
    found.push(`Its timer was not moved for ${duration(one.reaper.came_round_ms_ago)}.`);
  }
  const errors = Object.values(one.callback_errors).reduce((sum, count) => sum + count, 0);
  if (errors) {
    found.push(`Callbacks raised ${errors === 1 ? "once" : `${number.format(errors)} times`}.`);
  }
  return found;
}

function outcomes(one) {
  const heads = [["outcome", false], ["count", true], ["a second, 1 min", true], ["5 min", true]];
  heads.push(["15 min", true], ["half waited at most", true], ["99 of 100", true]);
  const rows = Object.entries(one.outcomes).map(([name, count]) => {
    const per_s = one.past ? one.past.per_s : {};
    const waits = one.waits_ms[name];
    return [
      name,
      number.format(count),
      ...["1m", "5m", "15m"].map((over) => (per_s[over] ? short.format(per_s[over][name]) : "-")),
      waits ? duration(waits.p50) : "-",
      waits ? duration(waits.p99) : "-",
    ];
  });
  return table("What became of operations", heads, rows);
}

function minutes(one) {
  if (!one.past || one.past.minutes.length < 2) return [];
  const names = Object.keys(one.outcomes);
  const heads = [["minutes ago", true], ...names.map((name) => [name, true])];
  const rows = one.past.minutes.map((counts, ago) => [
    `${ago} to ${ago + 1}`,
    ...names.map((name) => number.format(counts[name])),
  ]);
  return [table("The last minutes", heads, rows)];
}

function details(one) {
  const found = [];
  if (one.foreign_locks.length) {
    const heads = [["operation", false], ["waits for its lock", true], ["the lock is held by", false]];
    found.push(table("Locks that others hold", heads, one.foreign_locks.map((wait) => [
      wait.operation,
      duration(wait.for_ms),
      wait.holder ? `${wait.holder.thread}: ${wait.holder.calls.join(", in ")}` : wait.lock,
    ])));
  }
  if (one.oldest.length) {
    const heads = [["operation", false], ["waits", true], ["expires in", true]];
    found.push(table("The oldest operations", heads, one.oldest.map((wait) => [
      wait.operation, duration(wait.age_ms), duration(wait.expires_in_ms),
    ])));
  }
  if (one.hottest_keys.length) {
    const all = one.looked_at >= one.pending;
    const caption = all ? "The keys on which most wait"
      : `The keys on which most wait, of the first and the last ${number.format(one.looked_at / 2)}`;
    found.push(table(caption, [["key", false], ["operations", true]], one.hottest_keys.map((key) => [
      key.key, `${number.format(key.waiting)}${key.or_more ? " or more" : ""}`,
    ])));
  }
  if (one.recent_errors.length) {
    const heads = [["time", false], ["where", false], ["error", false], ["operation", false]];
    found.push(table("The last errors", heads, one.recent_errors.map((fault) => [
      fault.time, fault.stage || fault.event, fault.error, fault.operation,
    ])));
  }
  return found;
}

function drawn(one) {
  const section = made("section");
  const limit = one.pending_limit === null ? "" : ` of at most ${number.format(one.pending_limit)}`;
  section.append(made("h2", one.name));
  const lead = one.pending
    ? `${operations(one.pending)}${limit}; the oldest for ${duration(one.oldest_ms)}.`
    : "Nothing waits.";
  section.append(made("p", lead, "lead"));
  worries(one).forEach((text) => section.append(made("p", text, "lead worry")));
  const late = one.timer.lateness_ms;
  section.append(figures([
    ["keys", number.format(one.watch_keys)],
    ["entries on watch lists", number.format(one.watch_entries)],
    ["conditions checked", number.format(one.checks)],
    ["tasks on the timer", number.format(one.timer.tasks)],
    ["99 of 100 expired late by at most", late ? duration(late.p99) : "-"],
  ]));
  section.append(outcomes(one), ...minutes(one), ...details(one));
  return section;
}

function relays(all) {
  const heads = [["relay", false], ["state", false], ["since", false], ["keys", true]];
  heads.push(["sent", true], ["received", true], ["lost", true], ["error", false]);
  return table("Relays to other processes", heads, all.map((one) => [
    one.relay, one.state, one.since, number.format(one.watched_keys), number.format(one.sent),
    number.format(one.received), number.format(one.lost), one.error || "",
  ]));
}

async function draw() {
  if (paused || document.hidden) return;
  let state;
  try {
    const answer = await fetch("state", { cache: "no-store" });
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    state = await answer.json();
  } catch (error) {
    about.textContent = `No answer: ${error.message}. The figures are old.`;
    return;
  }
  const count = state.purgatories.length;
  about.textContent = `Process ${state.process}, ${count} purgator${count === 1 ? "y" : "ies"}, ${state.time}`;
  const scrolled = [...document.querySelectorAll(".wide")].map((one) => one.scrollLeft);
  const focused = [...document.querySelectorAll(".wide")].indexOf(document.activeElement);
  place.replaceChildren(...state.purgatories.map(drawn));
  if (state.relays.length) place.append(relays(state.relays));
  const wides = [...document.querySelectorAll(".wide")];
  wides.forEach((one, index) => { one.scrollLeft = scrolled[index] || 0; });
  if (focused >= 0 && wides[focused]) wides[focused].focus({ preventScroll: true });
}

pause.addEventListener("click", () => {
  paused = !paused;
  pause.setAttribute("aria-pressed", String(paused));
  pause.textContent = paused ? "Go on" : "Pause";
  draw();
});

async function goOn() {
  await draw();
  setTimeout(goOn, EVERY_MS);
}

goOn();
