"""The stories about faults in messages and connections end on a real Kafka as they do here."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from purgatory.cluster import ClusterConfig
from purgatory.cluster.fault_injection import ConnectionFaults
from purgatory.cluster.listeners import Endpoint
from purgatory.kafka.faults import CutConnections, Fault, RefuseProduces
from purgatory.kafka.faults.kinds import ResponseFault
from purgatory.real_kafka import KafkaFiles, RealKafka
from tests.wire.drivers import cluster_driver
from tests.wire.drivers.cluster_driver import ClusterDriver
from tests.wire.drivers.driver import Responses
from tests.wire.drivers.steps import MIN_INSYNC, Begin, Story
from tests.wire.drivers.stories import STORIES
from tests.wire.proxy.test_addresses import ask

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]

_LEADERS = (1, 2)
_REPLICAS = [[1, 2, 3], [2, 3, 1]]
_CREATE_TOPICS = 19
_PATIENCE_S, _LOOKS_S, _REST_S, _SETTLES_S = 60.0, 0.05, 0.5, 1.0
_NUMBERS = itertools.count()


def is_of_messages(story: Story) -> bool:
    """Whether all faults of a story are in messages or connections, and clients ask for records."""
    steps = [step for group in story.scheduler for step in group]
    faults = [step.fault for step in steps if isinstance(step, Begin)]
    messages = (CutConnections, RefuseProduces, ResponseFault)
    only = all(isinstance(fault, messages) for fault in faults)
    return bool(faults) and only and not story.has_transactions and not story.drops_laggards


OF_MESSAGES = [story for story in STORIES if is_of_messages(story)]


class RealDriver(ClusterDriver):
    """A topic of a real Kafka, whose loop runs only while a step is taken or settles."""

    def __init__(self, kafka: RealKafka, runner: asyncio.Runner, topic: str) -> None:
        self.responses = Responses()
        self._kafka = kafka
        self._runner = runner
        self._topic = topic
        self._producers = {}
        self._begun = []
        self._clients = {}
        self._unnamed = itertools.count()

    def create_topic(self) -> None:
        """Create the topic; brokers 1 and 2 lead its partitions."""

        settings = [{"name": "min.insync.replicas", "value": str(MIN_INSYNC)}]
        placed = [
            {"partition_index": number, "broker_ids": brokers}
            for number, brokers in enumerate(_REPLICAS)
        ]
        topic = {
            "name": self._topic,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": placed,
            "configs": settings,
        }
        values = {"topics": [topic], "timeout": timedelta(seconds=20), "validate_only": False}

        async def main() -> None:
            answer = await ask(self._address(1), _CREATE_TOPICS, 7, values)
            assert not answer.topics[0].error_code, answer
            await asyncio.sleep(_SETTLES_S)  # the leaders learn of their partitions

        self._runner.run(main())

    def rest(self, expected: str = "") -> str:
        """Wait until the responses are as expected, or don't change any more; return them."""

        async def main() -> str:
            before, rested_s, waited_s = "", 0.0, 0.0
            while waited_s < _PATIENCE_S and (expected or rested_s < _REST_S):
                now = ", ".join(self.responses.texts)
                if expected and now == expected:
                    break
                rested_s = rested_s + _LOOKS_S if now == before else 0.0
                before, waited_s = now, waited_s + _LOOKS_S
                await asyncio.sleep(_LOOKS_S)
            return ", ".join(self.responses.texts)

        return self._runner.run(main())

    def end(self) -> None:
        """Close the clients, and end the faults."""

        async def main() -> None:
            for client in self._clients.values():
                await client.close()
            self._kafka.fault.end_all()

        self._runner.run(main())

    def _state(self, partition: int) -> Any:
        return SimpleNamespace(leader=_LEADERS[partition])

    def _address(self, broker_id: int) -> Endpoint:
        return self._kafka.brokers[broker_id].listeners[0].endpoint

    def _faults(self, fault: Fault) -> ConnectionFaults:
        return self._kafka.fault


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def kafka(kafka_files: KafkaFiles, runner: asyncio.Runner) -> Iterator[RealKafka]:
    async def new() -> RealKafka:
        kafka = RealKafka(kafka_files, ClusterConfig(brokers=3))
        await kafka.start()
        return kafka

    kafka = runner.run(new())
    yield kafka
    runner.run(kafka.stop())


def test_stories_of_messages_are_some() -> None:
    kinds = {
        type(step.fault) for one in OF_MESSAGES for step in one.steps if isinstance(step, Begin)
    }
    assert len(OF_MESSAGES) >= 8
    assert len(kinds) >= 4


@pytest.mark.parametrize("story", OF_MESSAGES, ids=lambda story: story.name)
def test_responses_are_those_of_the_story(
    kafka: RealKafka, runner: asyncio.Runner, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"orders-{next(_NUMBERS)}"
    monkeypatch.setattr(cluster_driver, "TOPIC", topic)
    driver = RealDriver(kafka, runner, topic)
    driver.create_topic()
    try:
        for group in story.scheduler:
            for step in group:
                driver.take(step)
            driver.rest()
        assert driver.rest(story.responses) == story.responses
    finally:
        driver.end()
