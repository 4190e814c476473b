"""Seconds from the start of `purgatory stream`, after `purgatory prepare`, to its first commits.

    python -m tests.benchmarks.stream_start [--full]

Rows are there. The first start begins with them; each further one is a restart, behind a kill, with
some more of them. A query has committed when its checkpoint says so. Beside the time by the clock
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
from purgatory.pipeline.stream.publisher import published_topics
from tests.benchmarks.live_load import PARTITIONS, Load, producer_of
from tests.benchmarks.measurement import Figure, Size, run_alone, say

PREFIX = "live"
TARGET_S = 6.0
_QUERIES = ("order", "waits")
_ROWS = 2_000
_GIVE_UP_S = 180.0
_WORKERS_END_S = 3.0


def measure(size: Size = Size.USUAL) -> list[Figure]:
    """Return the medians of the restarts."""
    topics = [TopicSpec(name, PARTITIONS) for name in published_topics(PREFIX).values()]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        ThreadedCluster(ClusterConfig(brokers=1, topics=topics)) as cluster,
    ):
        environment = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache"}
        if size is not Size.SMALL:
            prepare = [sys.executable, "-m", "purgatory", "prepare"]
            subprocess.run(prepare, env=environment, check=True, capture_output=True)
        producer = producer_of(cluster.bootstrap_servers)
        load = Load(producer, PREFIX)
        found = []
        for number in range(1 + size.pick(1, 5, 9)):
            load.tick(_ROWS)
            producer.flush()
            # The rows may be in one batch with others: each query commits a batch at least.
            one = _start(cluster.bootstrap_servers, environment, Path(folder) / "out")
            say(
                f"{'restart' if number else 'start'}: "
                + ", ".join(f"{name} {value:.1f} s" for name, value in one.items())
            )
            found.append(one)
    return [
        Figure("restart to the first commit", _of(found, "first commit"), "s", TARGET_S),
        Figure("restart to the first commit of both", _of(found, "both"), "s"),
        Figure("the processors', to the first commit", _of(found, "processors"), "s"),
    ]


def _of(found: Sequence[Mapping[str, float]], name: str) -> float:
    return median(one[name] for one in found[1:])


def _start(servers: str, environment: Mapping[str, str], out: Path) -> dict[str, float]:
    """Start the command, and kill it when both queries have committed."""
    command = [sys.executable, "-m", "purgatory", "stream", f"--prefix={PREFIX}", f"--out={out}"]
    before = {name: _commits(out, name) for name in _QUERIES}
    start_s = time.monotonic()
    with subprocess.Popen(
        [*command, f"--bootstrap={servers}"],
        env=environment,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            took: dict[str, float] = {}
            while "both" not in took:
                after_s = time.monotonic() - start_s
                assert process.poll() is None, "it ended"
                assert after_s < _GIVE_UP_S, "it does not get ready"
                done = [_commits(out, name) - before[name] for name in _QUERIES]
                if any(done) and not took:
                    took = {"first commit": after_s, "processors": _processors_s(process.pid)}
                if all(done):
                    took["both"] = after_s
                time.sleep(0.02)
            return took
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            # Its Python workers end when they see that, and could take from the next one's time.
            time.sleep(_WORKERS_END_S)


def _commits(out: Path, query: str) -> set[str]:
    folder = out / "checkpoint" / query / "commits"
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
