"""The processes of a real Kafka's brokers: their files, their start, signals and end.

Ground rules
------------
* Calls block, but for signals: an event loop makes them on other threads, one at a time for each
  broker.
* The brokers are a process group, with a guard that ends it when this program is gone.
* Ports of brokers stay bound here, without being listened on: the system gives them to nobody else
  until Java listens, nor while a broker is dead.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from purgatory.cluster.config import ClusterConfig
from purgatory.cluster.listeners import Endpoint
from purgatory.kafka.errors import ClusterError
from purgatory.real_kafka import guard
from purgatory.real_kafka.jars import KafkaFiles
from purgatory.real_kafka.settings import (
    HOST,
    Ports,
    broker_settings,
    properties_text,
    scram_arguments,
)

_META, _BOOTSTRAP = "meta.properties", "bootstrap.checkpoint"
_STOP_S = 20.0
_SHOWN_CHARACTERS = 600
_BAD_LINE = re.compile(r"^.*(?:FATAL|ERROR|Exception|Error:).*$", re.MULTILINE)


class BrokerProcesses:
    """The brokers' processes, and their folder: the data folder, or a temporary one.

    Args:
        files: those of Kafka.
        config: the cluster's configuration.
    """

    def __init__(self, files: KafkaFiles, config: ClusterConfig) -> None:
        self.password = secrets.token_hex(16)
        self._files = files
        self._config = config
        self._folder = Path(tempfile.gettempdir())
        self._reserved: list[socket.socket] = []
        self._guard: subprocess.Popen[bytes] | None = None
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.ports: Mapping[int, Ports] = {
            broker_id: Ports(
                self._reserve(), self._reserve(), [self._reserve() for _ in config.all_listeners]
            )
            for broker_id in config.broker_ids
        }

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of Kafka {self._files.version}: {len(self._running)} live>"

    def _reserve(self) -> int:
        """Bind a free port, and return its number."""
        reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._reserved.append(reserved)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, 0))
        return int(reserved.getsockname()[1])

    # Their files.

    def prepare(self) -> None:
        """Start the guard, and write all brokers' files.

        Raises:
            ClusterError: Java does not run, or a folder can't be used.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="purgatory-kafka-"))
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        try:
            for broker_id in self._config.broker_ids:
                logs = self._logs(broker_id)
                logs.mkdir(parents=True, exist_ok=True)
                settings = broker_settings(self._config, broker_id, self.ports, logs, self.password)
                self._file(broker_id).write_text(properties_text(settings), encoding="ascii")
            self._format()
        except OSError as error:
            raise ClusterError(f"a broker's files can't be written: {error}") from error

    def _file(self, broker_id: int) -> Path:
        return self._folder / f"{broker_id}.properties"

    def _logs(self, broker_id: int) -> Path:
        return (self._config.data_dir or self._folder).absolute() / f"kafka-{broker_id}"

    def _format(self) -> None:
        """Have Kafka's tool format the first broker's folder; the others' are like it.

        Each run of the tool costs a second.
        """
        first, *others = self._config.broker_ids
        if (self._logs(first) / _META).exists():  # from an earlier run
            return
        cluster_id = secrets.token_urlsafe(16).replace("-", "a")
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id]
        arguments = [*tool, "-c", str(self._file(first)), *scram_arguments(self._config)]
        done = subprocess.run(
            self._files.command(*arguments), check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise ClusterError(
                f"Kafka {self._files.version} did not format its folder: "
                f"{_last_error(done.stdout + done.stderr)}"
            )
        meta = (self._logs(first) / _META).read_text(encoding="utf-8")
        for broker_id in others:
            logs = self._logs(broker_id)
            folder_id = secrets.token_urlsafe(16).replace("-", "a")
            own = re.sub(r"(?m)^node\.id=.*$", f"node.id={broker_id}", meta)
            own = re.sub(r"(?m)^directory\.id=.*$", f"directory.id={folder_id}", own)
            (logs / _META).write_text(own, encoding="utf-8")
            shutil.copy(self._logs(first) / _BOOTSTRAP, logs / _BOOTSTRAP)

    # Their processes.

    def is_running(self, broker_id: int) -> bool:
        """Whether a broker's process is there, also while it is paused."""
        process = self._running.get(broker_id)
        return process is not None and process.poll() is None

    def run(self, broker_id: int) -> None:
        """Start a broker's process.

        Raises:
            ClusterError: it can't be started.
        """
        assert self._guard is not None, "prepare comes first"
        try:
            with self._log(broker_id).open("ab") as log:
                self._running[broker_id] = subprocess.Popen(
                    self._files.command("kafka.Kafka", str(self._file(broker_id))),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self._folder,
                    process_group=self._guard.pid,
                )
        except OSError as error:
            raise ClusterError(f"broker {broker_id} can't be started: {error}") from error

    def _log(self, broker_id: int) -> Path:
        return self._folder / f"{broker_id}.log"

    def check(self, broker_id: int) -> None:
        """Check that a broker's process has not ended.

        Raises:
            ClusterError: it has; the message has its last error.
        """
        if not self.is_running(broker_id):
            with suppress(OSError):
                told = _last_error(self._log(broker_id).read_text("utf-8", "replace"))
                raise ClusterError(f"broker {broker_id} of Kafka did not start: {told}")

    def pid(self, broker_id: int) -> int | None:
        """Return the number of a broker's process; None: it is dead."""
        return self._running[broker_id].pid if self.is_running(broker_id) else None

    def kill(self, broker_id: int) -> None:
        """Kill a broker by a signal that it can't handle, and wait for its end."""
        process = self._running.pop(broker_id, None)
        if process is not None:
            process.kill()
            process.wait()

    def pause(self, broker_id: int) -> None:
        """Stop a broker's process, until `resume`."""
        self._signal(broker_id, signal.SIGSTOP)

    def resume(self, broker_id: int) -> None:
        """Continue a broker's process."""
        self._signal(broker_id, signal.SIGCONT)

    def _signal(self, broker_id: int, number: signal.Signals) -> None:
        process = self._running.get(broker_id)
        if process is not None:
            process.send_signal(number)

    def stop(self) -> None:
        """End all processes, and remove the temporary folder. Idempotent.

        Logs in a data folder are closed in order; others are not read any more.
        """
        processes = list(self._running.values())
        self._running.clear()
        if self._config.data_dir is not None:
            for process in processes:
                process.send_signal(signal.SIGCONT)
                process.terminate()
            _wait(processes)
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        while self._reserved:
            self._reserved.pop().close()
        if self._guard is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            if self._guard.stdin is not None:
                self._guard.stdin.close()
            self._guard.wait()
            self._guard = None

    def endpoints(self, broker_id: int) -> list[Endpoint]:
        """Return a broker's addresses behind the proxy, in the order of the listeners."""
        return [Endpoint(HOST, port) for port in self.ports[broker_id].clients]


def _wait(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)


def _last_error(text: str) -> str:
    """Return the line of a log that says why Java ended."""
    lines = _BAD_LINE.findall(text) or [line for line in text.splitlines() if line.strip()]
    return (lines[-1].strip() if lines else "it said nothing")[:_SHOWN_CHARACTERS]
