"""Offsets committed in transactions: which hold, against a list of all records, looked through."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.kafka import CommittedOffset, OffsetKey, TransactionResult
from purgatory.kafka.groups.offsets import PendingOffsets

KEYS = [OffsetKey("g", "in", 0), OffsetKey("g", "in", 1), OffsetKey("h", "in", 0)]

_keys = st.sampled_from(KEYS)
_ids = st.integers(1, 3)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), _ids, _keys),
        st.tuples(st.just("plain"), st.just(0), _keys),
        st.tuples(st.sampled_from(TransactionResult), _ids, st.none()),
    ),
    max_size=30,
)


def _holding(steps: list[tuple[object, int, OffsetKey | None]]) -> dict[OffsetKey, int]:
    """The current offsets: of each key the last record, of those that hold by themselves or whose
    producer's next end is a commit."""
    holds: dict[OffsetKey, int] = {}
    for number, (kind, producer, key) in enumerate(steps):
        if kind == "hold":
            ends = [k for k, who, _ in steps[number:] if who == producer and k != "hold"]
            if not ends or ends[0] is not TransactionResult.COMMIT:
                continue
        if key is not None:
            holds[key] = number
    return holds


@settings(max_examples=300)
@given(_steps)
def test_committed_transaction_keeps_its_last_record_of_a_key(
    steps: list[tuple[object, int, OffsetKey | None]],
) -> None:
    pending = PendingOffsets()
    holds: dict[OffsetKey, int] = {}
    for number, (kind, producer, key) in enumerate(steps):
        if isinstance(kind, TransactionResult):
            for ended, committed in pending.end(producer, kind):
                assert committed is not None
                holds[ended] = committed.offset
        elif kind == "hold":
            assert key is not None
            pending.hold(producer, (key, CommittedOffset(number, -1, "")))
        else:
            assert key is not None
            pending.supersede(key)
            holds[key] = number
    assert holds == _holding(steps)


def test_groups_with_pending_offsets_are_known() -> None:
    pending = PendingOffsets()
    for key in KEYS:
        pending.hold(1, (key, CommittedOffset(5, -1, "")))
    assert pending.group_offsets("g") == {KEYS[0].topic_partition, KEYS[1].topic_partition}
    assert len(pending) == 3
    pending.end(1, TransactionResult.ABORT)
    assert pending.group_offsets("g") == set()
