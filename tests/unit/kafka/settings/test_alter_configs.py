"""AlterConfigs and IncrementalAlterConfigs: accepted and refused changes of settings."""

from __future__ import annotations

import pytest

from purgatory.kafka import ErrorCode, KafkaError
from purgatory.kafka.settings.alter_configs import (
    BROKER_KEYS,
    TOPIC_CONFIGS,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    changed_settings,
)
from purgatory.kafka.settings.broker_settings import broker_configs
from purgatory.kafka.settings.topic_settings import BROKER_SETTINGS, log_config

_SET, _DELETE = ConfigOperation.SET, ConfigOperation.DELETE
_APPEND, _SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT
_OF_BROKERS = ConfigResource("broker", BROKER_KEYS, {"num.partitions": "4"}, BROKER_SETTINGS)


def _changed(
    now: dict[str, str], *changes: tuple[str, str | None, int], of: ConfigResource = TOPIC_CONFIGS
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
        ({}, ("no.such.one", None, _DELETE), {}),
        ({}, ("cleanup.policy", "compact", _APPEND), {"cleanup.policy": "delete,compact"}),
        ({}, ("cleanup.policy", "delete", _APPEND), {"cleanup.policy": "delete"}),
        (
            {"cleanup.policy": "compact,delete"},
            ("cleanup.policy", "delete", _SUBTRACT),
            {"cleanup.policy": "compact"},
        ),
        ({}, ("compression.type", "producer", _SET), {"compression.type": "producer"}),
        ({}, ("cleanup.policy", "delete", _SUBTRACT), {"cleanup.policy": ""}),
        ({}, ("cleanup.policy", "", _SET), {"cleanup.policy": ""}),
        ({}, ("cleanup.policy", "", _APPEND), {"cleanup.policy": "delete"}),
        (
            {"cleanup.policy": ""},
            ("cleanup.policy", "compact", _APPEND),
            {"cleanup.policy": "compact"},
        ),
        (
            {"cleanup.policy": "compact, delete"},
            ("cleanup.policy", "delete", _SUBTRACT),
            {"cleanup.policy": "compact"},
        ),
    ],
)
def test_change_is_applied_to_a_copy_of_the_settings(
    now: dict[str, str], change: tuple[str, str | None, int], then: dict[str, str]
) -> None:
    before = dict(now)
    assert _changed(now, change) == then
    assert now == before, "the former settings are unchanged"


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ([("retention.ms", "x", _SET)], 40, "retention.ms=x: it is a whole number"),
        ([("retention.hours", "1", _SET)], 40, "Unknown topic config name: retention.hours"),
        ([("retention.ms", "1", _APPEND)], 40, "retention.ms is no list"),
        ([("cleanup.policy", "delete,", _SET)], 40, "it is one of delete, compact"),
        ([("cleanup.policy", None, _APPEND)], 42, "cleanup.policy is set to null"),
        ([("retention.ms", None, _SET)], 42, "retention.ms is set to null"),
        ([("retention.ms", "1", 4)], -1, "operation 4; there are 0 to 3"),
        ([("retention.ms", "1", _SET), ("retention.ms", "2", _SET)], 42, "is named 2 times"),
        ([("segment.index.bytes", "3", _SET)], 40, "segment.index.bytes=3: it is at least 4"),
        (
            [("min.compaction.lag.ms", "10", _SET), ("max.compaction.lag.ms", "5", _SET)],
            40,
            "min.compaction.lag.ms=10: it is at most max.compaction.lag.ms, which is 5",
        ),
        ([("compression.type", "lzma", _SET)], 40, "it is one of producer, uncompressed, gzip"),
        ([("remote.storage.enable", "true", _SET)], 40, "here it is 'false' and nothing else"),
    ],
)
def test_invalid_change_is_refused_with_the_settings_name(
    changes: list[tuple[str, str | None, int]], code: int, said: str
) -> None:
    with pytest.raises(KafkaError, match=" ") as refused:
        _changed({"segment.bytes": "99"}, *changes)
    assert refused.value.code == code
    assert said in refused.value.message


def test_broker_setting_is_kept_by_the_topics_name() -> None:
    changed = _changed({}, ("log.retention.ms", "7", _SET), of=_OF_BROKERS)
    assert changed == {"retention.ms": "7"}
    with pytest.raises(KafkaError, match=r"log\.retention\.ms=-2: it is at least -1"):
        _changed({}, ("log.retention.ms", "-2", _SET), of=_OF_BROKERS)


def test_broker_keeps_settings_of_librdkafkas_tests() -> None:
    name = "sasl.kerberos.min.time.before.relogin"
    changed = _changed({}, (name, "58000", _SET), of=_OF_BROKERS)
    assert changed == {name: "58000"}
    assert _changed(changed, (name, None, _DELETE), of=_OF_BROKERS) == {}
    with pytest.raises(KafkaError, match="it is at least 0"):
        _changed({}, (name, "-1", _SET), of=_OF_BROKERS)


def test_broker_setting_without_an_effect_here_is_kept() -> None:
    of = broker_configs({"log.dirs": "/x"}, lambda _: None)
    assert _changed({}, ("num.io.threads", "9", _SET), of=of) == {"num.io.threads": "9"}
    assert _changed({}, ("no.such.one", "1", _SET), of=of) == {}
    for refused in ("log.dirs", "ssl.keystore.location", "num.io.threads"):
        with pytest.raises(KafkaError, match=refused) as error:
            _changed({}, (refused, "99", _SET), of=of)
        assert error.value.code is ErrorCode.INVALID_REQUEST


def test_unchangeable_setting_may_only_be_set_to_its_value() -> None:
    assert _changed({}, ("num.partitions", "4", _SET), of=_OF_BROKERS) == {}
    for change in (("num.partitions", "5", _SET), ("num.partitions", None, _DELETE)):
        with pytest.raises(KafkaError, match="while the cluster runs: it is '4'") as refused:
            _changed({}, change, of=_OF_BROKERS)
        assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("policy", "deletes", "compacts"),
    [
        ("", False, False),
        ("  ", False, False),
        ("delete", True, False),
        ("compact , delete", True, True),
    ],
)
@pytest.mark.parametrize("of", ["topic", "broker"])
def test_a_cleanup_policy_is_a_list_that_may_be_empty(
    policy: str, deletes: bool, compacts: bool, of: str
) -> None:
    said = {"cleanup.policy": policy}
    log = log_config(said, lambda _: None) if of == "topic" else log_config({}, said.get)
    assert (log.deletes, log.compacts) == (deletes, compacts)
