"""What AlterConfigs and IncrementalAlterConfigs make of settings: by a table, and refused."""

from __future__ import annotations

import pytest

from purgatory.kafka import ErrorCode, KafkaError
from purgatory.kafka.config_changes import (
    KEYS_OF_BROKERS,
    OF_TOPICS,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    changed_settings,
)

_SET, _DELETE = ConfigOperation.SET, ConfigOperation.DELETE
_APPEND, _SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT
_OF_BROKERS = ConfigResource("brokers", KEYS_OF_BROKERS, {"num.partitions": "4"})


def _changed(
    now: dict[str, str], *changes: tuple[str, str | None, int], of: ConfigResource = OF_TOPICS
) -> dict[str, str]:
    return changed_settings(now, [ConfigChange(*one) for one in changes], of, lambda _: None)


@pytest.mark.parametrize(
    ("now", "change", "then"),
    [
        ({}, ("retention.ms", "7", _SET), {"retention.ms": "7"}),
        ({"retention.ms": "7"}, ("retention.ms", "8", _SET), {"retention.ms": "8"}),
        ({"retention.ms": "7"}, ("retention.ms", None, _DELETE), {}),
        ({"retention.ms": "7"}, ("retention.ms", "8", _DELETE), {}),
        ({}, ("retention.ms", None, _DELETE), {}),
        ({}, ("cleanup.policy", "compact", _APPEND), {"cleanup.policy": "delete,compact"}),
        ({}, ("cleanup.policy", "delete", _APPEND), {"cleanup.policy": "delete"}),
        (
            {"cleanup.policy": "compact,delete"},
            ("cleanup.policy", "delete", _SUBTRACT),
            {"cleanup.policy": "compact"},
        ),
        ({}, ("compression.type", "producer", _SET), {"compression.type": "producer"}),
    ],
)
def test_one_change(
    now: dict[str, str], change: tuple[str, str | None, int], then: dict[str, str]
) -> None:
    before = dict(now)
    assert _changed(now, change) == then
    assert now == before, "the former settings stay for whoever looks at them"


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ([("retention.ms", "x", _SET)], 40, "retention.ms=x: it is a whole number"),
        ([("retention.hours", "1", _SET)], 40, "there is no setting 'retention.hours' of topics"),
        ([("retention.hours", None, _DELETE)], 40, "there is no setting 'retention.hours'"),
        ([("retention.ms", "1", _APPEND)], 40, "retention.ms is no list"),
        ([("cleanup.policy", "delete", _SUBTRACT)], 40, "it is one of delete, compact"),
        ([("cleanup.policy", None, _APPEND)], 42, "cleanup.policy is set to null"),
        ([("retention.ms", None, _SET)], 42, "retention.ms is set to null"),
        ([("retention.ms", "1", 4)], 42, "operation 4; there are 0 to 3"),
        ([("retention.ms", "1", _SET), ("retention.ms", "2", _SET)], 42, "is named 2 times"),
        ([("compression.type", "lzma", _SET)], 40, "it is one of producer, uncompressed, gzip"),
        ([("preallocate", "true", _SET)], 40, "here it is 'false' and nothing else"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(
    changes: list[tuple[str, str | None, int]], code: int, said: str
) -> None:
    with pytest.raises(KafkaError, match=" ") as refused:
        _changed({"segment.bytes": "99"}, *changes)
    assert refused.value.code == code
    assert said in refused.value.message


def test_brokers_have_names_of_their_own() -> None:
    changed = _changed({}, ("log.retention.ms", "7", _SET), of=_OF_BROKERS)
    assert changed == {"retention.ms": "7"}
    with pytest.raises(KafkaError, match=r"no setting .retention\.ms. of brokers"):
        _changed({}, ("retention.ms", "7", _SET), of=_OF_BROKERS)
    with pytest.raises(KafkaError, match=r"log\.retention\.ms=-2: it is at least -1"):
        _changed({}, ("log.retention.ms", "-2", _SET), of=_OF_BROKERS)


def test_what_stays_while_a_broker_runs_may_be_said_and_not_changed() -> None:
    assert _changed({}, ("num.partitions", "4", _SET), of=_OF_BROKERS) == {}
    for change in (("num.partitions", "5", _SET), ("num.partitions", None, _DELETE)):
        with pytest.raises(KafkaError, match="while the cluster runs: it is '4'") as refused:
            _changed({}, change, of=_OF_BROKERS)
        assert refused.value.code is ErrorCode.INVALID_REQUEST
