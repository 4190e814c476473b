// Times and counts in words. Times are microseconds, as on the wire, or milliseconds, as of a wheel.

export const number = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const seconds = new Intl.NumberFormat("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 });

const UNITS = [
  ["µs", 1, 1_000],
  ["ms", 1_000, 1_000],
  ["s", 1_000_000, 120],
  ["min", 60_000_000, 120],
  ["h", 3_600_000_000, Infinity],
];

/** A length of time: `2.5 ms`, `1.5 s`. `duration_text` in settings/typed_duration.py shows the same. */
export function duration(us) {
  if (us === null || us === undefined) return "-";
  for (const [unit, size, below] of UNITS) {
    const shown = Number((us / size).toPrecision(4));
    // Once rounded: 999,999 µs are 1 s.
    if (Math.abs(shown) < below) return `${short.format(shown)} ${unit}`;
  }
}

export const durationOfMs = (ms) => (ms === 0 ? "0 ms" : duration(ms * 1000));

/** A moment since the start, to the microsecond: `4.000 123 s`. */
export function moment(us) {
  const micros = String(Math.abs(us) % 1000).padStart(3, "0");
  return `${seconds.format(Math.trunc(us / 1000) / 1000)} ${micros} s`;
}

/** A moment for a narrow column: `4.000 s`. */
export const shortMoment = (us) => `${seconds.format(us / 1_000_000)} s`;

/** `1 operation`, `2 operations`. */
export const counted = (count, one, many = `${one}s`) => `${number.format(count)} ${count === 1 ? one : many}`;
