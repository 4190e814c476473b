"""A process that applies one transaction of many changes, and prints its time and memory.

    python -m tests.databases.cdc.large_transaction CHANGES URL

The changes lie in six partitions and come in batches of 100,000, as from `purgatory apply`.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator

from purgatory.cdc import Record, open_target
from purgatory.cdc.apply.exactly_once import Writer
from purgatory.cdc.apply.transactions import apply_transactions
from tests.databases.cdc.change_log import record

PARTITIONS = 6
BATCH_RECORDS = 100_000


def changes(count: int, xid: int = 7) -> Iterator[Record]:
    """The changes of one transaction, in the order of the source."""
    for xoffset in range(count):
        yield record(
            xoffset // PARTITIONS,
            partition=xoffset % PARTITIONS,
            xid=xid,
            xoffset=xoffset,
            commit=xoffset == count - 1,
            position=f"binlog.000001:{xid * 100}",
            data={"id": xoffset, "name": f"name {xoffset}", "n": xoffset % 1000},
        )


def main(count: int, url: str) -> None:
    target = open_target(url)
    target.prepare()
    writer = Writer(target)
    before_mib = _peak_mib()
    began_s = time.monotonic()
    applied = 0
    batch: list[Record] = []
    for one in changes(count):
        batch.append(one)
        if len(batch) == BATCH_RECORDS:
            applied += apply_transactions(writer, batch).applied
            batch = []
    applied += apply_transactions(writer, batch).applied
    told = {
        "applied": applied,
        "seconds": round(time.monotonic() - began_s, 1),
        "peak_mib": round(_peak_mib() - before_mib),
    }
    target.close()
    print(json.dumps(told))


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
