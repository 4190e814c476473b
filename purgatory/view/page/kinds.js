// The kinds of marks: each kind has a colour and a shape of its own.

export const KINDS = ["produce", "consumer", "follower", "other"];

export const WORDS = {
  produce: "produce: waits for followers",
  consumer: "fetch of a consumer: waits for records",
  follower: "fetch of a follower: waits for records",
  other: "another request",
};

export function kindOf({ purgatory, kind }) {
  if (purgatory === "Produce") return "produce";
  if (purgatory === "Fetch") return kind === "follower" ? "follower" : "consumer";
  return "other";
}

/** Outline of a kind's shape around 0, of radius 1: a circle is null. */
export const OUTLINES = {
  produce: null,
  consumer: [[-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]],
  follower: [[0, -1.15], [1.15, 0], [0, 1.15], [-1.15, 0]],
  other: [[0, -1.1], [1.1, 0.9], [-1.1, 0.9]],
};
