"""Options: valid ones, and the errors of invalid ones."""

from __future__ import annotations

import pytest

from purgatory.kafka import TopicPartition
from purgatory.source import OptionError
from purgatory.source.options import (
    EARLIEST,
    LATEST,
    Position,
    SourceOptions,
    parse_options,
)

GOOD = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}


def _refused(change: dict[str, str | None]) -> str:
    given = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    with pytest.raises(OptionError) as caught:
        parse_options(given)
    return str(caught.value)


def _options(**change: str) -> SourceOptions:
    return parse_options({**GOOD, **change})


def test_named_topics_are_read_and_loss_fails_by_default() -> None:
    options = _options(subscribe="orders, bills")
    assert options.subscription.names == ("orders", "bills")
    assert options.start is None
    assert options.end == Position(LATEST)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.max_offsets_per_trigger is None


def test_names_are_case_insensitive() -> None:
    options = _options(STARTINGOFFSETS="EARLIEST", maxoffsetspertrigger="5")
    assert options.start == Position(EARLIEST)
    assert options.max_offsets_per_trigger == 5


def test_settings_of_the_client_are_passed_on_and_hidden() -> None:
    options = _options(
        **{
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "ann",
            "kafka.sasl.password": "secret",
        }
    )
    assert options.client["sasl.password"] == "secret"
    assert options.client["security.protocol"] == "SASL_PLAINTEXT"
    assert "secret" not in repr(options)


def test_offsets_are_given_by_partition_and_the_rest_is_earliest() -> None:
    start = _options(startingOffsets='{"orders": {"0": 12, "3": -1}}').start
    assert start is not None
    assert start.otherwise == EARLIEST
    assert start.offsets == {TopicPartition("orders", 0): 12, TopicPartition("orders", 3): LATEST}
    assert start.moves


def test_pattern_matches_whole_names() -> None:
    subscription = parse_options(
        {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribePattern": "or.*"}
    ).subscription
    assert subscription.includes("orders")
    assert not subscription.includes("for-orders")


@pytest.mark.parametrize(
    ("change", "named", "right"),
    [
        ({"kafka.bootstrap.servers": None}, "kafka.bootstrap.servers", "HOST:PORT"),
        ({"subscribe": None}, "subscribePattern", "neither is given"),
        ({"subscribePattern": "x"}, "subscribePattern", "both are given"),
        ({"subscribe": "a,,b"}, "subscribe='a,,b'", "a,b"),
        ({"subscribe": None, "subscribePattern": "("}, "subscribePattern='('", "expression"),
        ({"startingOffset": "earliest"}, "startingOffset", 'did you mean "startingOffsets"?'),
        ({"colour": "red"}, "'colour'", "there are subscribe, "),
        ({"path": "/data"}, "path", "subscribe"),
        ({"startingOffsets": "begin"}, "startingOffsets='begin'", "earliest, latest, or JSON"),
        ({"startingOffsets": "[1]"}, "startingOffsets='[1]'", '{"orders": {"0": 12'),
        ({"startingOffsets": '{"orders": 3}'}, "startingOffsets", "'orders' has 3"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "startingOffsets", "'0': -3"),
        ({"startingOffsets": '{"orders": {"x": 3}}'}, "startingOffsets", "'x': 3"),
        ({"startingOffsets": '{"orders": {"0": true}}'}, "startingOffsets", "'0': True"),
        ({"startingOffsets": '{"bills": {"0": 3}}'}, "startingOffsets", "not subscribed to"),
        ({"endingOffsets": "earliest"}, "endingOffsets", "give latest"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "endingOffsets", "give latest"),
        ({"startingTimestamp": "noon"}, "startingTimestamp='noon'", "milliseconds since 1970"),
        (
            {"startingTimestamp": "1", "startingOffsets": "latest"},
            "startingOffsets and startingTimestamp",
            "leave one out",
        ),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger='0'", "at least 1"),
        ({"minPartitions": "many"}, "minPartitions='many'", "whole number"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss='maybe'", "true or false"),
        ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit", "checkpoint"),
        ({"kafka.sasl.jaas.config": "x"}, "kafka.sasl.jaas.config", "kafka.sasl.username"),
        ({"kafka.no.such": "x"}, "no.such", "CONFIGURATION.md"),
        ({"kafka.security.protocol": "magic"}, "security.protocol", "CONFIGURATION.md"),
        ({"kafka.ssl.ca.location": "no/such.pem"}, "kafka.ssl.ca.location", "no such file"),
    ],
)
def test_invalid_option_is_named_with_a_valid_one(
    change: dict[str, str | None], named: str, right: str
) -> None:
    message = _refused(change)
    assert named in message
    assert right in message


@pytest.mark.parametrize("option", ["minPartitions", "maxRecordsPerPartition", "endingTimestamp"])
def test_stream_refuses_options_of_batches(option: str) -> None:
    options = _options(**{option: "5"})
    options.refuse_for_batch()
    with pytest.raises(OptionError, match=f"{option} is no option of a stream"):
        options.refuse_for_stream()


def test_batch_refuses_options_of_streams() -> None:
    options = _options(maxOffsetsPerTrigger="5")
    options.refuse_for_stream()
    with pytest.raises(OptionError, match="maxOffsetsPerTrigger is no option of a batch"):
        options.refuse_for_batch()


def test_batch_without_offsets_is_refused() -> None:
    with pytest.raises(OptionError, match="startingOffsets=latest"):
        _options(startingOffsets="latest").refuse_for_batch()
