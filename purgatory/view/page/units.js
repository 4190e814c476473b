// Times and counts in words. Times are microseconds, as on the wire, or milliseconds, as of a wheel.

export const number = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const seconds = new Intl.NumberFormat("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 });

/** A length of time: `2.5 ms`, `1.5 s`. */
export function duration(us) {
  if (us === null || us === undefined) return "-";
  if (Math.abs(us) < 1000) return `${short.format(us)} µs`;
  if (Math.abs(us) < 1_000_000) return `${short.format(us / 1000)} ms`;
  if (Math.abs(us) < 120_000_000) return `${short.format(us / 1_000_000)} s`;
  if (Math.abs(us) < 7_200_000_000) return `${short.format(us / 60_000_000)} min`;
  return `${short.format(us / 3_600_000_000)} h`;
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
