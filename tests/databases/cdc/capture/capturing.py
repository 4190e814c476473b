"""A database whose changes go to a topic of the same name."""

from __future__ import annotations

from dataclasses import dataclass, replace

from purgatory.cdc.capture import (
    CaptureConfig,
    KafkaSettings,
    capture_changes,
    parse_source_address,
)
from purgatory.cdc.capture.source import TableFilter
from purgatory.cluster import ThreadedCluster
from tests.databases.cdc.captured import Captured, read_topic
from tests.databases.cdc.mariadb import MariaDb


@dataclass
class Capturing:
    """Makes the database; ``begin`` stores where the capture starts."""

    mariadb: MariaDb
    cluster: ThreadedCluster
    name: str

    def __post_init__(self) -> None:
        self.mariadb.run(f"CREATE DATABASE {self.name}")

    @property
    def config(self) -> CaptureConfig:
        """A capture up to the end of the binlog."""
        source = parse_source_address(f"{self.mariadb.url}/{self.name}")
        return CaptureConfig(
            source=source,
            kafka=KafkaSettings(self.cluster.bootstrap_servers),
            topic=self.name,
            tables=TableFilter(self.name),
            partitions=3,
            once=True,
        )

    def run(self, *statements: str) -> None:
        """Run statements in the database."""
        self.mariadb.run(*statements, database=self.name)

    def capture(self, *, snapshot: bool = False) -> int:
        """Capture up to the end; return how many records were sent."""
        return capture_changes(replace(self.config, snapshot=snapshot))

    def records(self) -> list[Captured]:
        """Return the topic's records."""
        return read_topic(self.cluster.bootstrap_servers, self.name)
