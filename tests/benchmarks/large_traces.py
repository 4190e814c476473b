"""A trace of any size in which exactly k of each anomaly are planted, and nothing else is wrong.

    python -m tests.benchmarks.large_traces OUT --rows 20M

writes a trace of so many sends and reads to the folder OUT, and to `OUT/expected.json` how many
cases of each anomaly an audit finds in it. Memory doesn't grow with the rows, but for some hundred
bytes a block of eight records: 20 million rows take 1 GiB.

The partitions of each topic differ in their rates. The producers of a partition take turns in it; a
fifth of them send in transactions, a block in each, of which a tenth is aborted. The group
`readers` reads everything, and `appliers` the last topic, whose records it applies; both are in
`read_committed`. An anomaly is planted in a block of its own, so that none makes another one but
those that `IMPLIED` tells of.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from purgatory.pipeline.jobs.audit import ANOMALIES
from purgatory.trace.trace_schema import SCHEMA_VERSION, TABLES
from tests.benchmarks.planted_blocks import GROUPS, Blocks, Shape
from tests.benchmarks.planted_rows import Part, rows_order, rows_table

IMPLIED: Mapping[str, Sequence[str]] = {
    "lost_ack_duplicate": ("duplicate",),
    "lost_write": ("sequence_gap",),
    "moved_write": ("duplicate",),
    "nonmonotonic_poll": ("reprocess",),
}
"""The anomalies that accompany each case of another one."""


def expected_counts(shape: Shape) -> dict[str, int]:
    """The number of cases of each anomaly in a trace."""
    counts = Counter(dict.fromkeys(ANOMALIES, shape.planted))
    counts["failed_send"] = 0  # what fails is read all the same
    for also in IMPLIED.values():
        counts.update(dict.fromkeys(also, shape.planted))
    if not shape.transactions:
        for name in ("partial_transaction", "zombie_write", "result_without_offset"):
            counts[name] = 0
    return dict(counts)


def write_large_trace(folder: Path, shape: Shape) -> None:
    """Write a trace to a folder that is made.

    Raises:
        ValueError: there are too few rows for so many anomalies, or too few partitions.
        FileExistsError: the folder has a trace.
    """
    blocks = Blocks(shape)
    counted: dict[str, Counter[str]] = {}
    for name in TABLES:
        (folder / name).mkdir(parents=True)
        counted[name] = Counter(parts=0, rows=0)
    for number, chosen in enumerate(blocks.parts()):
        for name, columns in Part(blocks, chosen).tables().items():
            order = rows_order(columns, number if shape.shuffled else None)
            table = rows_table(name, columns, folder.name, order)
            path = folder / name / f"part-{number:05}.parquet"
            pq.write_table(table, path, compression="zstd", row_group_size=250_000)
            counted[name].update(parts=1, rows=len(table))
    _write_heads(folder, shape, counted, int(blocks.polled_us.max()))


def _write_heads(
    folder: Path, shape: Shape, tables: Mapping[str, Mapping[str, int]], end_us: int
) -> None:
    """Write `run.json`, by whose settings nothing is permitted, and `expected.json`."""
    producers = {"group": "writers", "acks": -1, "idempotence": True, "max_in_flight": 5}
    readers = {"assignment": "assign", "isolation": "read_committed"}
    head = {
        "schema_version": SCHEMA_VERSION,
        "run_id": folder.name,
        "scenario": "large",
        "seed": shape.seed,
        "faults": [],
        "producers": [{**producers, "retries": 10, "single_writer": True}],
        "consumers": [{"group": group, **readers} for group in GROUPS],
        "complete": True,
        "started": 0,
        "duration_ms": end_us // 1000 + 1000,
        "tables": tables,
    }
    (folder / "run.json").write_text(json.dumps(head, indent=1), encoding="utf-8")
    expected = json.dumps(expected_counts(shape), indent=1)
    (folder / "expected.json").write_text(expected, encoding="utf-8")


def _number(text: str) -> int:
    """A number such as 542000, 542k or 20M."""
    factors = {"k": 10**3, "M": 10**6}
    return int(text[:-1]) * factors[text[-1]] if text[-1:] in factors else int(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the trace that the arguments ask for."""
    parser = argparse.ArgumentParser(prog="large_traces", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("out", type=Path, help="the folder to be made")
    parser.add_argument("--rows", type=_number, required=True, help="sends and reads, such as 20M")
    for name in ("partitions", "producers", "planted", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Shape, name))
    parser.add_argument("--transactions", action=argparse.BooleanOptionalAction, default=True)
    given = vars(parser.parse_args(arguments))
    folder = given.pop("out")
    try:
        write_large_trace(folder, Shape(**given))
    except (ValueError, FileExistsError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
