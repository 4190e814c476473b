"""Files of changes: a file is known by its path and its beginning."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from purgatory.cdc import ApplyOptions, Record, Target, open_target
from purgatory.cdc.apply.applier import Applier
from purgatory.cdc.apply.files import apply_file
from tests.databases.cdc.change_log import quarantined, record, rows_of


def lines(*records: Record) -> bytes:
    return b"".join((one.value or b"") + b"\n" for one in records)


def applied(target: Target, url: str, path: Path) -> tuple[int, list[int]]:
    """Apply a file; return how many changes were, and the ids in the target."""
    with Applier(partial(open_target, url), ApplyOptions()) as applier:
        count = apply_file(applier, path).applied
    return count, [row["id"] for row in rows_of(target)]


def test_file_that_replaced_another_is_applied_from_its_beginning(
    target: Target, url: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(lines(*(record(n, xid=n, data={"id": n}) for n in range(3))))
    assert applied(target, url, path) == (3, [0, 1, 2])
    with path.open("ab") as growing:
        growing.write(lines(record(3, xid=3, data={"id": 3})))
    assert applied(target, url, path) == (1, [0, 1, 2, 3])
    path.write_bytes(lines(*(record(n, xid=n, data={"id": n}) for n in range(4, 6))))
    assert applied(target, url, path) == (2, [0, 1, 2, 3, 4, 5])
    assert applied(target, url, path) == (0, [0, 1, 2, 3, 4, 5])


def test_byte_order_mark_is_no_part_of_the_first_change(
    target: Target, url: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    both = lines(record(0, data={"id": 1}), record(1, data={"id": 2}))
    path.write_bytes(b"\xef\xbb\xbf" + both)
    assert applied(target, url, path) == (2, [1, 2])
    assert quarantined(target) == []
