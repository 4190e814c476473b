"""The anomalies that an audit knows: their names, and which promise each of them breaks."""

from __future__ import annotations

from collections.abc import Mapping

from purgatory.pipeline.result_rows import Order

ANOMALIES: Mapping[str, str] = {
    "inconsistent_offset": "one offset of a partition holds two or more values",
    "duplicate": "one value is stored at two or more offsets of a topic",
    "lost_ack_duplicate": "a duplicate whose earlier attempt was stored, and the client never knew",
    "lost_write": "an acknowledged value below what readers reached, that nobody read",
    "moved_write": "an acknowledged value that lies at another offset than was acknowledged",
    "unseen": "an acknowledged value above what readers reached",
    "aborted_read": "a value was read though its send definitely failed, or was aborted",
    "partial_transaction": "a reader saw a transaction in parts, or before it was committed",
    "zombie_write": "a record counts though its producer was fenced, or its transaction over",
    "retry_reorder": "a record that was sent again lies behind a later one of its producer",
    "nonmonotonic_send": "a record that was sent once lies behind a later one of its producer",
    "sequence_gap": "a producer's record is missing between stored ones",
    "failed_send": "a record that was never stored, as its producer could know",
    "multi_writer": "two producers wrote to a partition at the same time",
    "poll_skip": "a reader's polls jump over known offsets",
    "nonmonotonic_poll": "a reader's next poll goes back",
    "key_order_violation": "an older version of a key was applied after a newer one",
    "reprocess": "one input offset was delivered twice or more, and applied once",
    "effect_duplicate": "one input offset was applied more than once",
    "offset_without_result": "a committed offset covers an input that has no result",
    "result_without_offset": "a result is stored whose offset is not committed",
}
"""Each anomaly in a sentence, in the order in which they are shown."""

VIOLATION, PERMITTED, INDETERMINATE, NONE = "violation", "permitted", "indeterminate", "none"
VERDICTS = (VIOLATION, INDETERMINATE, PERMITTED, NONE)
"""The verdicts on a count, the worst first; `none` where nothing was found."""

EXPECTATIONS: Mapping[str, tuple[str, ...]] = {
    "order": (
        "retry_reorder",
        "nonmonotonic_send",
        "nonmonotonic_poll",
        "key_order_violation",
    ),
    "once": ("duplicate", "lost_ack_duplicate", "moved_write", "reprocess", "effect_duplicate"),
    "no-loss": ("lost_write", "moved_write", "sequence_gap", "poll_skip", "inconsistent_offset"),
    "one-writer": ("multi_writer",),
}
"""The expectations of a log, independent of the settings, and the anomalies against each."""

OF_ABSENCE = (
    "lost_write",
    "moved_write",
    "aborted_read",
    "partial_transaction",
    "sequence_gap",
    "poll_skip",
    "reprocess",
    "offset_without_result",
    "result_without_offset",
)
"""Found because something is not in the trace: in an incomplete one, that proves nothing."""

UNREAD = "nobody read its partition"
UNREAD_COPIES = "nobody read its partition, and an answer was lost"
"""The reasons why it is unknown that an acknowledged record is there, and there once."""

EQUAL_RECORDS = "equal records: on purpose, or one that was sent again; effects would show it"
"""The reason why it is unknown that a record is stored twice."""
FETCHED_AGAIN = "fetched again by one consumer: a seek, or what it never got; effects would show it"
"""The reason why it is unknown that a record was processed twice, or in another order."""
NO_EFFECTS = "no effects: nothing tells whether what was delivered was processed"
"""The anomalies that brokers can't see."""

NO_COLUMN = "no column "
"""How the reason begins where plain data lacks the column that would show an anomaly."""

NO_SENDS = "no sends in the trace"
NONE_STORED = "every send failed"
NO_READS = "no reads in the trace"
NONE_ACKNOWLEDGED = "nothing was acknowledged"
"""The reasons why there was nothing to decide."""

GROUNDS: Mapping[str, tuple[str, ...]] = {
    NO_SENDS: (
        *("duplicate", "lost_ack_duplicate", "lost_write", "moved_write", "unseen"),
        *("aborted_read", "zombie_write", "retry_reorder", "nonmonotonic_send", "sequence_gap"),
        *("failed_send", "multi_writer"),
    ),
    NONE_STORED: (
        *("duplicate", "lost_ack_duplicate", "zombie_write", "retry_reorder", "nonmonotonic_send"),
        *("sequence_gap", "multi_writer"),
    ),
    NONE_ACKNOWLEDGED: ("lost_write", "moved_write", "unseen"),
    NO_READS: (
        *("inconsistent_offset", "duplicate", "lost_ack_duplicate", "lost_write", "moved_write"),
        *("aborted_read", "poll_skip", "reprocess", "effect_duplicate"),
    ),
}
"""The anomalies that cannot be looked for, by what a trace lacks; the first reason counts.

Without polls no poll went back, and producers have their order all the same.
"""

COUNTS_ORDER: Order = (
    ("run_id", None),
    ("anomaly", tuple(ANOMALIES)),
    ("verdict", VERDICTS),
    ("group", None),
    ("setting", None),
)
"""The order of the table `audit`: by run, anomaly as it is shown, the worst verdict first."""

JUDGED_ORDER: Order = (("run_id", None),)
"""The order of the table `judged`."""

WITNESSES_ORDER: Order = (("run_id", None), ("anomaly", tuple(ANOMALIES)), ("rank", None))
"""The order of the table `witnesses`."""

EVENT: Mapping[str, str] = {
    "time_us": "bigint",
    "event": "string",
    "group": "string",
    "producer": "bigint",
    "consumer": "bigint",
    "sequence": "bigint",
    "attempt": "int",
    "acks": "int",
    "outcome": "string",
    "error": "string",
    "until_us": "bigint",
    "poll": "bigint",
    "applied": "boolean",
    "key": "bigint",
    "version": "bigint",
    "value_id": "bigint",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "transactional_id": "string",
    "epoch": "int",
    "transaction": "bigint",
    "isolation": "string",
    "held": "boolean",
}
"""A row of the trace in a witness: `event` is `send`, `read`, `effect`, `commit`, `transaction`.

`until_us` is the time of the response to a send, or of a transaction's end. An inapplicable value
is null.
"""


# The tables of a trace that an audit reads.


OPTIONAL = ("effects", "commits", "transactions")
"""The optional tables of a trace."""

AUDIT_TABLES = ("sends", "reads", *OPTIONAL)


# Sizes of what an audit takes at once, and shows.


SPLIT = 250_000
"""The offsets, sequence numbers or polls in a range: some tens of megabytes in a window."""

SPLIT_US = 10_000_000
"""The time of a range of one key's effects, in microseconds."""

WITNESSES = 10
"""The number of cases of each run and anomaly that are shown with their rows."""


def check_limits(witnesses: int, split: int, split_us: int) -> None:
    """Refuse numbers that make no sense.

    Raises:
        ValueError: which one, and what it may be.
    """
    for name, number, least in (("witnesses", witnesses, 0), ("split", split, 1)):
        if number < least:
            raise ValueError(f"{name} must be at least {least}, and is {number}")
    if split_us < 1:
        raise ValueError(f"split_us must be at least 1 microsecond, and is {split_us}")
