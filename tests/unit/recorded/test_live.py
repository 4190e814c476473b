"""The short run of random sequences goes on without a real Kafka; a long one needs it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tests.recorded import live
from tests.recorded.real_kafka import RealKafkaError


@pytest.fixture(autouse=True)
def _no_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RealKafkaError("Maven is needed\nto fetch Kafka")

    monkeypatch.setattr(live, "real_kafka", refuse)


def test_short_run_says_that_kafka_is_not_there() -> None:
    ran = CliRunner().invoke(live.main, ["--short"])
    assert ran.exit_code == 0
    assert ran.output.splitlines()[0] == "no real Kafka to compare with: Maven is needed"


def test_long_run_fails_without_kafka() -> None:
    assert CliRunner().invoke(live.main, ["--seed", "1"]).exit_code == 1
