"""The growth of waits, occupancy and the audit with a trace, beside DuckDB on the same files.

    python -m tests.benchmarks.pipeline_scale [--full]

Makes traces of some million rows with Spark's `range`: operations, and sends with their reads.
Each job then runs on the small and on the ten times larger trace, in a session of its own process
on two cores with the given heap, and DuckDB answers the same question on the same Parquet, in turn.
Both write nothing: their results are fetched. Starting Spark is counted apart.

The commands by DuckDB, from their start on, are set beside plain SQL: `audit` beside the same
counts, `waits` and `occupancy` beside the same question; all in processes of their own, in seconds
of computing.

With ``--full`` the larger trace has 20,000,000 rows, and the smaller 2,000,000.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.measurement import Figure, Size, run_alone, say
from tests.benchmarks.trace_rows import (
    DURATION_US_PER_OPERATION,
    audit_configuration,
    write_operations,
    write_sends_and_reads,
)

ROOT = Path(__file__).parents[2]
HEAP = "2500m"
"""Of the Java side; with what Java needs beside its heap and Python, below 4 GiB."""
CORES = 2
JOBS = ("waits", "waits approximate", "occupancy", "audit")
GROWTH = 11
"""The most that ten times the rows may take, in times as long."""


def make(rows: int, folder: Path) -> None:
    """Write a trace's tables, in a process of its own: its memory is not that of the jobs."""
    _in_process("_make", rows, folder)


def _make(rows: int, folder: Path) -> dict[str, float]:
    from purgatory.pipeline.engines.spark.session import spark_session

    with spark_session(f"local[{CORES}]") as session:
        write_operations(session, rows, folder / "operations")
        write_sends_and_reads(session, rows, folder)
    return {}


def with_spark(job: str, rows: int, folder: Path) -> dict[str, float]:
    """Seconds by the clock, seconds to start, and the peak memory of Python and Java in MiB."""
    return _in_process("_with_spark", job, rows, folder)


def _with_spark(job: str, rows: int, folder: Path) -> dict[str, float]:
    from purgatory.pipeline.engines.spark.session import spark_session

    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory {HEAP} pyspark-shell"
    started = time.monotonic()
    with spark_session(f"local[{CORES}]") as session:
        session.range(1).collect()
        begin = time.monotonic()
        results = _SPARK_JOBS[job](session, rows, folder)
        seconds = time.monotonic() - begin
        java = int(session.sparkContext._jvm.ProcessHandle.current().pid())  # type: ignore[union-attr]
        memory = _peak_mib(java) + _peak_mib(os.getpid())
    return {
        "seconds": seconds,
        "start": begin - started,
        "mib": memory,
        "results": results,
    }


def _spark_waits(session: Any, _rows: int, folder: Path, **how: Any) -> int:
    from purgatory.pipeline import waits

    return len(waits(_read(session, folder / "operations"), **how).collect())


def _spark_approximate_waits(session: Any, rows: int, folder: Path) -> int:
    return _spark_waits(session, rows, folder, percentiles="approximate")


def _spark_occupancy(session: Any, rows: int, folder: Path) -> int:
    import pyarrow as pa

    from purgatory.pipeline import occupancy
    from purgatory.pipeline.jobs.run_spans import bucket_width_us

    end_us = rows * DURATION_US_PER_OPERATION
    spans = pa.table(
        {"run_id": ["scale"], "end_us": [end_us], "width_us": [bucket_width_us(end_us)]}
    )
    operations = _read(session, folder / "operations")
    return len(occupancy(operations, session.createDataFrame(spans)).collect())


def _spark_audit(session: Any, _rows: int, folder: Path) -> int:
    from purgatory.pipeline import audit

    sends, reads = (_read(session, folder / name) for name in ("sends", "reads"))
    with audit(sends, reads, configuration=audit_configuration()) as audited:
        return len(audited.audit.collect())


def _read(session: Any, folder: Path) -> Any:
    return session.read.parquet(f"file:{folder}")


_SPARK_JOBS: dict[str, Callable[[Any, int, Path], int]] = {
    "waits": _spark_waits,
    "waits approximate": _spark_approximate_waits,
    "occupancy": _spark_occupancy,
    "audit": _spark_audit,
}


def with_duckdb(job: str, rows: int, folder: Path) -> dict[str, float]:
    """Seconds by the clock and the peak memory of the process in MiB."""
    return _in_process("_with_duckdb", job, rows, folder)


def _with_duckdb(job: str, rows: int, folder: Path) -> dict[str, float]:
    import duckdb

    from purgatory.pipeline.jobs.run_spans import bucket_width_us

    end_us = rows * DURATION_US_PER_OPERATION
    question = QUESTIONS[job].format(folder=folder, end_us=end_us, width_us=bucket_width_us(end_us))
    with tempfile.TemporaryDirectory() as spill:
        connection = duckdb.connect(
            config={"threads": CORES, "memory_limit": "3GiB", "temp_directory": spill}
        )
        begin = time.monotonic()
        results = len(connection.execute(question).fetchall())
        seconds = time.monotonic() - begin
    return {"seconds": seconds, "mib": _peak_mib(os.getpid()), "results": results}


QUESTIONS = {
    "waits": """
select run_id, purgatory, kind, outcome, count(*), avg(wait_us), max(wait_us),
       quantile_cont(wait_us, [0.5, 0.95, 0.99, 0.999])
from '{folder}/operations/*.parquet'
group by grouping sets ((run_id, purgatory, kind, outcome), (run_id, purgatory, kind),
                        (run_id, purgatory, outcome), (run_id, purgatory))
""",
    "waits approximate": """
select run_id, purgatory, kind, outcome, count(*), avg(wait_us), max(wait_us),
       approx_quantile(wait_us, [0.5, 0.95, 0.99, 0.999])
from '{folder}/operations/*.parquet'
group by grouping sets ((run_id, purgatory, kind, outcome), (run_id, purgatory, kind),
                        (run_id, purgatory, outcome), (run_id, purgatory))
""",
    "occupancy": """
with changes as (
    select run_id, purgatory, broker, start_us as at_us, 1 as change
    from '{folder}/operations/*.parquet' where outcome <> 'immediate'
    union all
    select run_id, purgatory, broker, end_us, -1
    from '{folder}/operations/*.parquet' where outcome not in ('immediate', 'pending')
), of_series as (
    select * from changes where at_us < {end_us}
    union all select run_id, purgatory, null, at_us, change from changes where at_us < {end_us}
), at_once as (
    select run_id, purgatory, broker, at_us, sum(change) as change
    from of_series group by all
), sizes as (
    select run_id, purgatory, broker, at_us, sum(change) over series as size,
           coalesce(lead(at_us) over series, {end_us}) - at_us as lasts_us
    from at_once window series as (partition by run_id, purgatory, broker order by at_us)
)
select run_id, purgatory, broker, at_us // {width_us} as bucket, max(size),
       sum(size * lasts_us) / {width_us}
from sizes group by all
""",
    "audit": """
with sent as (
    select run_id, producer, sequence, value_id, topic, partition, max(attempt) as attempts,
           min("offset") filter (outcome = 'ok') as acked_offset,
           count(*) filter (outcome = 'ok') as oks, bool_and(outcome = 'fail') as failed
    from '{folder}/sends/*.parquet' group by all
), places as (
    select run_id, topic, partition, "offset", value_id
    from '{folder}/reads/*.parquet' group by all
), reached as (
    select run_id, topic, partition, max("offset") as reached from places group by all
), stored as (
    select run_id, value_id, min("offset") as first_offset, count(*) as copies
    from places group by all
), known as (
    select sent.*, first_offset, copies, reached,
           coalesce(first_offset, acked_offset) as log_offset
    from sent left join stored using (run_id, value_id)
              left join reached using (run_id, topic, partition)
), in_order as (
    select *, lag(log_offset) over series as offset_before,
           lag(attempts) over series as attempts_before, lag(sequence) over series as before
    from known where log_offset is not null
    window series as (partition by run_id, producer, topic, partition order by sequence)
), intervals as (
    select run_id, topic, partition, producer, min(log_offset) as first, max(log_offset) as last
    from known group by all
), writers as (
    select *, max(last) over (partition by run_id, topic, partition order by first
        rows between unbounded preceding and 1 preceding) as reached from intervals
), polls as (
    select run_id, "group", consumer, topic, partition, poll,
           min("offset") as first, max("offset") as last
    from '{folder}/reads/*.parquet' group by all
), steps as (
    select *, lag(last) over (partition by run_id, "group", consumer, topic, partition
                              order by poll) as before
    from polls
)
select 'inconsistent_offset', count(*) from (
    select 1 from places group by run_id, topic, partition, "offset" having count(*) > 1)
union all select 'duplicate', count(*) from stored where copies > 1
union all select 'lost_write', count(*) from known
    where oks > 0 and copies is null and acked_offset <= reached
union all select 'unseen', count(*) from known
    where oks > 0 and copies is null and acked_offset > reached
union all select 'aborted_read', count(*) from known where failed and copies > 0
union all select 'retry_reorder', count(*) from in_order
    where log_offset < offset_before and attempts_before > 1
union all select 'nonmonotonic_send', count(*) from in_order where log_offset < offset_before
union all select 'sequence_gap', count(*) from in_order where sequence > before + 1
union all select 'multi_writer', count(*) from writers where first < reached
union all select 'poll_skip', count(*) from steps where first > before + 1
union all select 'nonmonotonic_poll', count(*) from steps where first <= before
""",
}
"""DuckDB's queries. The one for occupancy is simpler than the job: a size that lasts into the next
bucket counts in the bucket in which it began. The one for the audit counts eleven of its anomalies,
of all runs together, and neither judges them nor names the records."""


def _in_process(name: str, *arguments: Any) -> dict[str, float]:
    """Call a function of this module in a new process, and return what it returns."""
    given = json.dumps([str(one) if isinstance(one, Path) else one for one in arguments])
    code = (
        "import json, sys; from pathlib import Path\n"
        "from tests.benchmarks import pipeline_scale as it\n"
        "*given, folder = json.loads(sys.argv[2])\n"
        "print(json.dumps(getattr(it, sys.argv[1])(*given, Path(folder))))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, name, given],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    measured: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return measured


def _peak_mib(process: int) -> float:
    """The most memory that a process ever had at one time."""
    if process == os.getpid():
        unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, KiB elsewhere
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:  # no Linux
        return 0.0
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) / 2**10


def _small(folder: Path) -> dict[str, float]:
    """See in one session whether all of it runs."""
    from purgatory.pipeline.engines.spark.session import spark_session

    rows = 2_000
    with spark_session(f"local[{CORES}]", rows=0) as session:
        write_operations(session, rows, folder / "operations")
        write_sends_and_reads(session, rows, folder)
        for job in ("waits", "occupancy"):
            assert _SPARK_JOBS[job](session, rows, folder) > 0
    for job in QUESTIONS:
        assert _with_duckdb(job, rows, folder)["results"] > 0
    return {"mib": _peak_mib(os.getpid())}


def measure(size: Size = Size.USUAL) -> list[Figure]:
    if size is Size.SMALL:
        with tempfile.TemporaryDirectory() as name:
            measured = _in_process("_small", Path(name))
        return [Figure("memory of Python", measured["mib"], "MiB", 4096)]
    rows = size.pick((0, 0), (200_000, 2_000_000), (2_000_000, 20_000_000))
    say(f"load before: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    figures = []
    with tempfile.TemporaryDirectory() as name:
        folders = {number: Path(name, str(number)) for number in rows}
        for number, folder in folders.items():
            folder.mkdir()
            make(number, folder)
        for job in JOBS:
            figures += _of_job(job, rows, folders, bounded=size is Size.FULL)
        figures += beside_plain(rows[-1], Path(name, "traces"), folders[rows[-1]])
    say(f"load after: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    return figures


_PLAIN = (
    "import sys; from pathlib import Path; from tests.benchmarks import pipeline_scale as it; "
    "it._with_duckdb(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))"
)


def beside_plain(rows: int, audited: Path, folder: Path) -> list[Figure]:
    """The costs of the commands beside SQL that only answers the question.

    Args:
        rows: of each trace.
        audited: the folder to make for the audit, beside whose counts are those of `plain_audit`.
        folder: with the operations for the other commands, beside which are `QUESTIONS`.
    """
    _in_process("_make_large", rows, audited)
    parts = len(list((folder / "operations").glob("*.parquet")))
    head = {
        "schema_version": 2,
        "run_id": "scale",
        "scenario": "scale",
        "seed": 1,
        "complete": True,
        "started": 0,
        "duration_ms": rows * DURATION_US_PER_OPERATION // 1_000,
        "producers": [],
        "consumers": [],
        "tables": {"operations": {"parts": parts, "rows": rows}},
    }
    (folder / "run.json").write_text(json.dumps(head), encoding="utf-8")
    plain = {job: ["-c", _PLAIN, job, str(rows), str(folder)] for job in ("waits", "occupancy")}
    plain["audit"] = ["-m", "tests.benchmarks.plain_audit", str(audited)]
    figures = []
    for job, rival in plain.items():
        trace = str(audited if job == "audit" else folder)
        own_s, own_mib = _computing("-m", "purgatory", job, trace, "--engine", "duckdb")
        plain_s, plain_mib = _computing(*rival)
        say(f"{job} by DuckDB, {rows:,} rows: {own_s:.1f} s of computing, {own_mib:,.0f} MiB")
        say(f"  with plain SQL: {plain_s:.1f} s of computing, {plain_mib:,.0f} MiB")
        name = f"{job} of {rows:,} rows by DuckDB"
        figures += [
            Figure(f"{name} / plain SQL, computing", own_s / plain_s, "x", 2),
            Figure(f"{name}, memory", own_mib, "MiB", 4096),
        ]
    return figures


def _make_large(rows: int, folder: Path) -> dict[str, float]:
    from tests.benchmarks.large_traces import write_large_trace
    from tests.benchmarks.planted_blocks import Shape

    write_large_trace(folder, Shape(rows, planted=3))
    return {}


def _computing(*arguments: str) -> tuple[float, float]:
    """The seconds of computing of a Python, user's and system's, and its peak memory in MiB."""
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 1), "an audit that finds violations ends with 1"
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return used.ru_utime + used.ru_stime, used.ru_maxrss / unit


def _of_job(
    job: str, rows: tuple[int, int], folders: dict[int, Path], bounded: bool
) -> list[Figure]:
    spark = {number: with_spark(job, number, folder) for number, folder in folders.items()}
    for number, measured in spark.items():
        say(
            f"{job:<18} {number:>11,} rows: {measured['seconds']:7.1f} s, "
            f"{measured['mib']:6,.0f} MiB, and {measured['start']:.1f} s to start"
        )
    duckdb = {}
    if job in QUESTIONS:
        duckdb = {number: with_duckdb(job, number, folder) for number, folder in folders.items()}
    for number, measured in duckdb.items():
        say(
            f"{'  with DuckDB':<18} {number:>11,} rows: {measured['seconds']:7.1f} s, "
            f"{measured['mib']:6,.0f} MiB"
        )
    few, many = rows
    slower = spark[many]["seconds"] / spark[few]["seconds"]
    figures = [
        Figure(f"{job} of {many:,} rows", spark[many]["seconds"], "s"),
        Figure(f"{job}, rows", many / spark[many]["seconds"], "per s", None, "higher"),
        Figure(f"{job}, from {few:,} to {many:,} rows", slower, "x", GROWTH),
        Figure(f"{job}, memory of Java and Python", spark[many]["mib"], "MiB", 4096),
    ]
    if not bounded:  # a small trace takes as long as Spark takes to warm up
        figures[2] = Figure(figures[2].name, slower, "x")
    if duckdb:
        beside = spark[many]["seconds"] / duckdb[many]["seconds"]
        figures.append(Figure(f"{job} of {many:,} rows, Spark / DuckDB", beside, "x"))
    return figures


if __name__ == "__main__":
    run_alone(measure)
