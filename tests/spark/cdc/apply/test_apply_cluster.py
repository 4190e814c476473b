"""A worker of a standalone cluster that is killed midway: each change takes effect once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from purgatory.cluster import ClusterConfig, ThreadedCluster, TopicSpec
from tests.databases.cdc.change_log import as_list, closing_target, random_log, record, rows_of
from tests.databases.cdc.postgres import Postgres
from tests.spark.pipeline.cluster import standalone_cluster

ROOT = Path(__file__).parents[4]
TOPIC = "changes"
RECORDS = 6_000

pytestmark = [pytest.mark.spark, pytest.mark.exhaustive, pytest.mark.timeout(900)]


def test_killed_worker_loses_and_duplicates_no_change(postgres: Postgres, tmp_path: Path) -> None:
    log, rows = random_log(11, RECORDS, keys=500)
    url = postgres.make_schema("cluster")
    config = ClusterConfig(brokers=1, topics=[TopicSpec(TOPIC, 2)])
    with ThreadedCluster(config) as kafka, standalone_cluster(tmp_path) as spark:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for number, one in enumerate(log):
            other = record(number, table="other", data={"id": number})
            producer.produce(TOPIC, one.value, partition=0)
            producer.produce(TOPIC, other.value, partition=1)
            producer.poll(0)
        producer.flush()
        with subprocess.Popen(
            [
                *(sys.executable, "-m", "purgatory", "apply", "--once", "--audit-log"),
                *("--bootstrap", kafka.bootstrap_servers, "--topic", TOPIC, "--to", url),
                *("--batch", "1000", "--master", spark.address),
            ],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        ) as applying:
            assert applying.stderr is not None
            told = []
            for line in applying.stderr:
                told.append(line)
                if len(told) == 3:
                    spark.workers[0].kill()
        assert applying.returncode == 0, "".join(told)
        assert len(told) > 3, "it was over before the worker was killed"
    with closing_target(url) as target:
        assert rows_of(target) == as_list(rows)
        assert len(rows_of(target, "other")) == RECORDS
        effects = [(row[1], row[2]) for row in target.select_own("purgatory_effects")]
        assert effects == [(part, offset) for part in (0, 1) for offset in range(RECORDS)]
