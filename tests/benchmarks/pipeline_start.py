"""The cost of a short analysis, from its process's start to its end, beside an empty program.

    python -m tests.benchmarks.pipeline_start [--full]

The commands analyze the trace of `purgatory simulate slow-follower`: by DuckDB, beside a program
that imports DuckDB and pyarrow and selects 1; by Spark, beside one that starts a session, counts
and groups once. The figures are seconds of computing,
Java's included; each command runs in turn with its rival.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from tests.benchmarks.measurement import Figure, Size, run_alone, say

_EMPTY = {
    "duckdb": "import duckdb, pyarrow; duckdb.sql('select 1').fetchall()",
    "spark": """
from purgatory.pipeline.engines.spark.session import spark_session
with spark_session("local[2]", rows=1000) as session:
    numbers = session.range(1000)
    numbers.count()
    numbers.groupBy((numbers.id % 10).alias("last")).count().collect()
""",
}
"""The programs beside which the commands are set."""

_TARGETS = {
    "duckdb": {"waits": 2.0, "audit": 2.0, "analyze": 4.0},
    "spark": {"waits": 1.3, "audit": 1.7, "analyze": 2.0},
}
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of Linux: children of children that end become this process's."""


def measure(size: Size = Size.USUAL) -> list[Figure]:
    """Return the ratios of each command and its rival."""
    figures = []
    with _adopting(), tempfile.TemporaryDirectory() as folder:
        trace = f"{folder}/trace"
        environment = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache"}
        _computing_s(["simulate", "slow-follower", "--trace", trace], environment)
        engines = size.pick(["duckdb"], ["duckdb", "spark"])
        for engine in engines:
            for job, target in _TARGETS[engine].items():
                out = Path(folder) / engine / job
                command = [job, trace, f"--engine={engine}", f"--out={out}", "--overwrite"]
                if engine == "spark":
                    command.append("--master=local[2]")
                pairs = [
                    (_computing_s(command, environment), _computing_s(engine, environment))
                    for _ in range(size.pick(1, 3, 5))
                ]
                for own_s, empty_s in pairs:
                    say(f"{job} by {engine}: {own_s:.2f} s, an empty program {empty_s:.2f} s")
                ratio = median(own_s / empty_s for own_s, empty_s in pairs)
                figures.append(Figure(f"{job} by {engine} / empty program", ratio, "x", target))
    return figures


@contextmanager
def _adopting() -> Iterator[None]:
    """Be the parent of children of children that end, whose computing counts then.

    Not after the block: what is nobody's child would never be reaped.
    """
    if sys.platform != "linux":
        yield
        return
    prctl = ctypes.CDLL(None).prctl
    prctl(_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(_SUBREAPER, 0)


def _computing_s(what: list[str] | str, environment: Mapping[str, str]) -> float:
    """The seconds of computing of a command, or of an engine's empty program, with its children."""
    command = ["-c", _EMPTY[what]] if isinstance(what, str) else ["-m", "purgatory", *what]
    before_s = _children_s()
    ran = subprocess.run(
        [sys.executable, *command], env=environment, stdout=subprocess.DEVNULL, check=False
    )
    assert ran.returncode in (0, 3), "an audit that can't tell ends with 3"
    with suppress(ChildProcessError):  # there are no more
        while True:
            os.wait()
    return _children_s() - before_s


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    run_alone(measure)
