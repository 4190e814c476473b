"""Seconds from the start of `purgatory stream` to its first commits.

    python -m tests.benchmarks.stream_start [--full]

Rows are there. The first start begins with them; each further one is a restart, behind a kill, with
some more of them. The query has committed when its checkpoint says so. Beside the time by the clock
stands what the processors spent on it, in all processes of the command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from purgatory.cluster import ClusterConfig, ThreadedCluster, TopicSpec
from tests.benchmarks.live_load import PARTITIONS, Load, producer_of
from tests.benchmarks.measurement import Figure, Size, run_alone, say

PREFIX = "live"
TARGET_S = 6.0
_ROWS = 2_000
_GIVE_UP_S = 180.0
_WORKERS_END_S = 3.0


def measure(size: Size = Size.USUAL) -> list[Figure]:
    """Return the medians of the restarts."""
    topics = [TopicSpec(f"{PREFIX}.operations", PARTITIONS)]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        ThreadedCluster(ClusterConfig(brokers=1, topics=topics)) as cluster,
    ):
        environment = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache"}
        producer = producer_of(cluster.bootstrap_servers)
        load = Load(producer, PREFIX)
        found = []
        for number in range(1 + size.pick(1, 5, 9)):
            load.tick(_ROWS)
            producer.flush()
            # The rows may be in one batch with others: a batch at least is committed.
            one = _start(cluster.bootstrap_servers, environment, Path(folder) / "out")
            say(
                f"{'restart' if number else 'start'}: "
                + ", ".join(f"{name} {value:.1f} s" for name, value in one.items())
            )
            found.append(one)
    return [
        Figure("restart to the first commit", _of(found, "first commit"), "s", TARGET_S),
        Figure("the processors', to the first commit", _of(found, "processors"), "s"),
    ]


def _of(found: Sequence[Mapping[str, float]], name: str) -> float:
    return median(one[name] for one in found[1:])


def _start(servers: str, environment: Mapping[str, str], out: Path) -> dict[str, float]:
    """Start the command, and kill it when the query has committed."""
    command = [sys.executable, "-m", "purgatory", "stream", f"--prefix={PREFIX}", f"--out={out}"]
    before = _commits(out)
    start_s = time.monotonic()
    with subprocess.Popen(
        [*command, f"--bootstrap={servers}"],
        env=environment,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            while not _commits(out) - before:
                assert process.poll() is None, "it ended"
                assert time.monotonic() - start_s < _GIVE_UP_S, "it does not get ready"
                time.sleep(0.02)
            after_s = time.monotonic() - start_s
            return {"first commit": after_s, "processors": _processors_s(process.pid)}
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            # Its Python workers end when they see that, and could take from the next one's time.
            time.sleep(_WORKERS_END_S)


def _commits(out: Path) -> set[str]:
    folder = out / "checkpoint" / "waits" / "commits"
    return {path.name for path in folder.glob("[0-9]*")} if folder.exists() else set()


def _processors_s(session: int) -> float:
    """Return what the processes of a session, and what they waited for, had of processors."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    run_alone(measure)
