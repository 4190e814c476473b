"""quixstreams in exactly-once mode: read, transform with state, write; killed in the middle."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from confluent_kafka import Consumer, Producer

from tests.suites.cluster_process import running_cluster
from tests.suites.outcomes import Outcome, Verdict
from tests.suites.pytest_suites import environment_of
from tests.suites.sources import BUILD, QUIXSTREAMS, ROOT

NAME = f"quixstreams {QUIXSTREAMS}"
_CASE = "transform_exactly_once"
_RECORDS = 500
_KEYS = 5
_DIES_AFTER = 250
_LIMIT_S = 240


def run(only: str, short: bool) -> Iterator[Outcome]:
    """Yield what becomes of the one case, which the short selection has no time for."""
    if only in _CASE and not short:
        python = environment_of("quixstreams")
        began_s = time.monotonic()
        with running_cluster(
            BUILD / "cluster-quixstreams.log", "--topic", "source:2", "--topic", "result:2"
        ) as servers:
            why = _why_wrong(python, servers)
        verdict = Verdict.FAILED if why else Verdict.PASSED
        yield Outcome(NAME, _CASE, verdict, time.monotonic() - began_s, why)


def _why_wrong(python: Path, servers: str) -> str:
    """Return what was lost, twice or wrong, or nothing."""
    _produce(servers)
    state = BUILD / "quixstreams-state"
    shutil.rmtree(state, ignore_errors=True)
    for dies_after, ends_with in ((_DIES_AFTER, 9), (0, 0)):
        app = [python, "-m", "tests.suites.quixstreams_app", servers, "source", "result", state]
        with (BUILD / "quixstreams.log").open("a", encoding="utf-8") as log:
            code = subprocess.run(
                [*map(str, app), str(dies_after)],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=_LIMIT_S,
                check=False,
            ).returncode
        if code != ends_with:
            return f"the stream ended with {code}, and not with {ends_with}"
    results = _read(servers)
    for key in range(_KEYS):
        numbers = range(key, _RECORDS, _KEYS)
        expected = [*zip(numbers, accumulate(numbers), strict=True)]
        if results.get(key) != expected:
            return f"of key {key} there are {results.get(key)}"
    return ""


def _produce(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for number in range(_RECORDS):
        producer.produce("source", json.dumps({"number": number}), key=str(number % _KEYS))
    assert producer.flush(60) == 0


def _read(servers: str) -> dict[int, list[tuple[int, int]]]:
    """Return the committed results of each key, in their order."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "results",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(["result"])
    results: dict[int, list[tuple[int, int]]] = {}
    while (message := consumer.poll(20)) is not None:
        assert message.error() is None, message.error()
        value = json.loads(message.value() or b"")
        pair = (value["number"], value["total"])
        results.setdefault(value["number"] % _KEYS, []).append(pair)
    consumer.close()
    return results
