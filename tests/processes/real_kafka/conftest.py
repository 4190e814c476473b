"""A real Kafka, where there is one: Java, and the jars in the cache or in the build."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from purgatory.cluster import ClusterError
from purgatory.pipeline.engines.spark.java import cache_folder
from purgatory.real_kafka import KafkaFiles, find_kafka
from tests.processes.cli.conftest import run_command
from tests.recorded.recordings import NEWEST
from tests.wire.proxy.conftest import pytest_configure

__all__ = ["pytest_configure", "run_command"]

_BUILT = Path(__file__).parents[3] / "build" / "real-kafka" / NEWEST


@pytest.fixture(scope="session")
def kafka_files(request: pytest.FixtureRequest) -> KafkaFiles:
    """The files of Kafka. They are fetched for the nightly run alone."""
    is_nightly = request.config.getoption("markexpr") == ""
    known = (_BUILT, cache_folder(os.environ) / f"kafka-{NEWEST}")
    found = next((folder for folder in known if folder.is_dir()), None)
    if found is None and not (is_nightly and shutil.which("mvn")):
        pytest.skip(f"Kafka {NEWEST} is not here: purgatory cluster --kafka {NEWEST} fetches it")
    try:
        return find_kafka(NEWEST if found is None else str(found))
    except ClusterError as error:
        pytest.skip(str(error))
