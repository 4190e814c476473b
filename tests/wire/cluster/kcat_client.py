"""kcat, which is librdkafka as a program."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from tests.wire.cluster.kafka_client import TIMEOUT_S, Record

_STARTS = 5
_KNEW_ONE_ALONE = b"All broker connections are down: 1/1"
"""kcat, which gives up if its first server refuses before it has tried the second one."""


class KcatClient:
    """A `KafkaClient`."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    def produce(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        acks: str = "all",
        idempotent: bool = False,
        codec: str = "none",
        **settings: object,
    ) -> None:
        own: dict[str, object] = {
            "acks": acks,
            "enable.idempotence": str(idempotent).lower(),
            "linger.ms": 20,
        }
        own |= settings
        chosen = [f"-X{name}={value}" for name, value in {**own, **settings}.items()]
        self.run("-P", "-t", topic, "-p", "0", "-z", codec, *chosen, given=b"\n".join(values))

    def read(self, topic: str, start: int, count: int) -> list[Record]:
        return self._read(topic, str(start), count)

    def read_from_time(self, topic: str, time_ms: int, count: int) -> list[Record]:
        return self._read(topic, f"s@{time_ms}", count)

    def read_in_group(self, group: str, topic: str, count: int) -> list[bytes]:
        reset = "-Xauto.offset.reset=earliest"
        return self.run("-G", group, "-c", str(count), reset, topic).splitlines()

    def _read(self, topic: str, start: str, count: int) -> list[Record]:
        read = self.run(
            *("-C", "-t", topic, "-p", "0", "-o", start, "-c", str(count)), *("-f", "%o %s\n")
        )
        parts = [line.partition(b" ") for line in read.splitlines()]
        return [Record(int(offset), value) for offset, _, value in parts]

    def run(self, *arguments: str, given: bytes = b"") -> bytes:
        """Run kcat, and return its output.

        Raises:
            RuntimeError: kcat failed; with its output.
        """
        for _ in range(_STARTS):
            ran = subprocess.run(
                ["kcat", "-b", self.bootstrap_servers, *arguments],
                input=given,
                capture_output=True,
                timeout=2 * TIMEOUT_S,
                check=False,
            )
            if _KNEW_ONE_ALONE not in ran.stderr:
                break
        if ran.returncode != 0:
            raise RuntimeError(f"kcat ended with {ran.returncode}: {ran.stderr.decode()}")
        return ran.stdout
