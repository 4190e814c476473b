"""The tutorial's tests end on a real Kafka as the document says; its data folder is kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from purgatory.cluster import ClusterConfig, TopicSpec
from purgatory.real_kafka import KafkaFiles, ThreadedRealKafka
from tests.unit.documents.documents import python_of
from tests.wire.cluster.confluent_client import ConfluentClient
from tests.world.virtual.pytest_run import run_pytest

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]

_TUTORIAL = Path(__file__).parents[3] / "docs" / "testing.md"


def test_first_tests_of_a_kafka_application_end_as_here(
    kafka_files: KafkaFiles, tmp_path: Path
) -> None:
    option = f"--kafka={kafka_files.jars}"
    status, said = run_pytest(tmp_path, option, text=python_of(_TUTORIAL))
    assert status == 1, said
    assert "1 failed, 3 passed" in said
    shown = re.findall(r"^(E   .*)$", _TUTORIAL.read_text(), re.MULTILINE)
    assert all(" ".join(line.split()) in " ".join(said.split()) for line in shown)


def test_records_in_a_data_folder_outlive_a_cluster(
    kafka_files: KafkaFiles, tmp_path: Path
) -> None:
    config = ClusterConfig(brokers=1, data_dir=tmp_path, topics=[TopicSpec("orders")])
    with ThreadedRealKafka(kafka_files, config) as kafka:
        ConfluentClient(kafka.bootstrap_servers).produce("orders", [b"a book"])
    with ThreadedRealKafka(kafka_files, config) as kafka:
        found = ConfluentClient(kafka.bootstrap_servers).read("orders", 0, 1)
    assert [record.value for record in found] == [b"a book"]
