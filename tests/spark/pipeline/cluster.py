"""A standalone cluster of Spark out of the Python package: a master and workers, on loopback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from purgatory.pipeline.engines.spark.java import find_java_home

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for a Java that lives some seconds, as half a dozen do in the tests of a cluster."""

_TIMEOUT_S = 300
_DEPLOY = "org.apache.spark.deploy"
_LOOPBACK = ("--host", "127.0.0.1", "--webui-port", "0")
_RESOURCES = ("--cores", "1", "--memory", "1g")


class Daemon:
    """A process that serves, and the lines that it has logged."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[str] = []
        self.process = process
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, pattern: str, *, after: int = 0) -> re.Match[str]:
        """The first match in the lines from index `after` on, once there is one."""
        with self._news:
            while True:
                for line in self.lines[after:]:
                    if match := re.search(pattern, line):
                        return match
                if not self._reader.is_alive():
                    pytest.fail(f"ended without {pattern!r}:\n" + "\n".join(self.lines))
                if not self._news.wait(_TIMEOUT_S):
                    pytest.fail(f"silent without {pattern!r}:\n" + "\n".join(self.lines))

    def kill(self) -> None:
        """End it and the processes that it started, as a power cut would."""
        for pid in (*_children(self.process.pid), self.process.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> None:
        """End it, if it has not ended."""
        self.process.terminate()
        self.process.wait(_TIMEOUT_S)
        self._reader.join(30)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.rstrip())
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


class Cluster:
    """A master, and workers of one core each, which can be killed and be added."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack, self._started = folder, stack, 0
        self.workers: list[Daemon] = []
        self.master = stack.enter_context(
            daemon(folder / "master", f"{_DEPLOY}.master.Master", *_LOOPBACK, "--port", "0")
        )
        self.address = self.master.wait_for(r"Starting Spark master at (spark://\S+)")[1]
        for _ in range(2):
            self.add_worker()
        for worker in self.workers:
            worker.wait_for("Successfully registered with master")

    def add_worker(self) -> Daemon:
        """Start one more worker; the master gives it work once it has registered."""
        self._started += 1
        folder = self._folder / f"worker-{self._started}"
        arguments = (*_LOOPBACK, *_RESOURCES, "--work-dir", str(folder), self.address)
        worker = self._stack.enter_context(daemon(folder, f"{_DEPLOY}.worker.Worker", *arguments))
        self.workers.append(worker)
        return worker


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Cluster]:
    """A master and two workers, all of which have ended at the end of the `with` block."""
    with ExitStack() as stack:
        yield Cluster(folder, stack)


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A Spark Connect server on this machine's cores; gives its address."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    arguments = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    with daemon(
        folder,
        f"{_DEPLOY}.SparkSubmit",
        *("--class", server, "--master", "local[2]", *arguments, "spark-internal"),
        memory="1g",
    ) as started:
        yield "sc://" + started.wait_for(r"Connect server started at: (\S+)")[1]


@contextmanager
def daemon(folder: Path, *arguments: str, memory: str = "256m") -> Iterator[Daemon]:
    """A process of Spark's `spark-class`, at home in a folder that is made for it."""
    home = Path(pyspark.__file__).parent
    folder.mkdir()
    process = subprocess.Popen(
        [str(home / "bin" / "spark-class"), *arguments],
        cwd=folder,
        env=spark_environment(folder, memory),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    started = Daemon(process)
    try:
        yield started
    finally:
        started.stop()


def spark_environment(folder: Path, memory: str) -> dict[str, str]:
    """The variables of a process of Spark that keeps its files in `folder`."""
    return {
        **os.environ,
        "JAVA_HOME": str(find_java_home(os.environ)),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_DAEMON_MEMORY": memory,
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
    }


def command_environment(settings: Sequence[str] = ()) -> dict[str, str]:
    """The variables of a `purgatory` command that runs on a cluster for some seconds.

    Args:
        settings: of Spark, such as `spark.sql.shuffle.partitions=2`.
    """
    words = [word for setting in settings for word in ("--conf", setting)]
    return {
        **os.environ,
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        "PYSPARK_SUBMIT_ARGS": " ".join([*words, "pyspark-shell"]),
    }


def _children(pid: int) -> list[int]:
    """The processes that a process started, and those that they started in turn."""
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    children = [int(word) for word in listed.stdout.split()]
    return [pid for child in children for pid in (*_children(child), child)]
