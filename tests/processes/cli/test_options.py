"""One dialect: an option, and a duration, is the same in all commands that have it."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import Any

import click
import pytest

from purgatory.cli.main import program
from purgatory.cli.options import client_settings, duration_parser
from purgatory.settings.typed_duration import Duration, duration_text
from tests.processes.cli.conftest import RunCommand

OWN_MEANING = {
    *("--engine", "--to", "--topic"),
    *("--count", "--delay", "--group", "--transactional-id"),
}
"""A topic that is created, written to or read; what computes a job, or applies a topic; into which
database changes go, or to which brokers a proxy. A fault takes them for the requests that it meets;
a wait counts what came, an answer is delayed, and the coordinator of a group or an id moves."""


def options_of(command: Any, path: str = "purgatory") -> dict[tuple[str, str], Any]:
    """All options of a command and of those below it, by name and command."""
    found = {
        (name, path): option
        for option in command.params
        if option.param_type_name == "option" and not option.hidden
        for name in option.opts
        if name.startswith("--") and name != "--help"
    }
    context = click.Context(command)
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        inner = command.get_command(context, name)
        found |= options_of(inner, f"{path} {name}")
    return found


def test_an_option_of_several_commands_is_one_option() -> None:
    told = defaultdict(set)
    for (name, _), option in options_of(program).items():
        told[name].add((option.help, str(option.metavar), option.multiple))
    assert len(told) > 70
    assert {name for name, ways in told.items() if len(ways) > 1} == OWN_MEANING


def test_durations_of_options_have_units() -> None:
    names = {name for name, _ in options_of(program)}
    assert not {name for name in names if name.endswith(("-us", "-ms", "-s", "-seconds"))}


def test_settings_of_the_client_are_those_of_librdkafka() -> None:
    given = ["security.protocol=SSL", "sasl.password=a=b", "client.id="]
    assert client_settings(given) == {
        "security.protocol": "SSL",
        "sasl.password": "a=b",
        "client.id": "",
    }
    assert client_settings([]) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("acks", "'acks': write NAME=VALUE, as in security.protocol=SSL"),
        ("=1", "'=1': write NAME=VALUE"),
        ("error_cb=print", "error_cb takes a function of a program"),
        ("logger=x", "logger takes a function of a program"),
    ],
)
def test_invalid_client_setting_is_refused(text: str, message: str) -> None:
    with pytest.raises(click.BadParameter, match=message):
        client_settings([text])


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("0s", 0),
        ("500us", 500),
        ("250ms", 250_000),
        ("1.5ms", 1_500),
        ("10s", 10_000_000),
        ("0.25 s", 250_000),
        (" 2m ", 120_000_000),
        ("2min", 120_000_000),
        ("1h", 3_600_000_000),
    ],
)
def test_a_duration_is_a_number_and_its_unit(text: str, us: int) -> None:
    typed = Duration(text)
    assert (typed.us, typed.ms, typed.seconds) == (us, us / 1e3, us / 1e6)
    assert typed.whole_ms == us // 1_000
    assert str(typed) == text


@pytest.mark.parametrize(
    "text", ["", "10", "s", "-1s", "1,5s", "1e3s", "10S", "1d", "nan s", "1s 2ms", "٣s", "1.s"]
)
def test_invalid_duration_is_refused_with_a_valid_form(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration; give a number and its unit: 500us"):
        Duration(text)


def test_parts_of_a_microsecond_are_refused() -> None:
    with pytest.raises(ValueError, match="no whole number of microseconds"):
        Duration("0.5us")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9ms", "'9ms' is too short; it must be at least 10ms"),
        ("1.1h", "'1.1h' is too long; it must be at most 1h"),
        ("15ms", "'15ms' is no multiple of 10ms"),
    ],
)
def test_option_enforces_its_limits(text: str, message: str) -> None:
    with pytest.raises(click.BadParameter, match=message):
        duration_parser("10ms", "1h", "10ms")(text)


def test_duration_beyond_64_bits_is_refused() -> None:
    longest = duration_parser()("1000000000h")
    assert 2 * longest.us < 2**63
    for text in ("1000000001h", f"{'9' * 5_000}h"):
        with pytest.raises(click.BadParameter, match="it must be at most 1000000000h"):
            duration_parser()(text)


def test_duration_parser_accepts_a_default() -> None:
    assert str(duration_parser()(Duration("2min"))) == "2min"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--window", ["waits", "nowhere"]),
        ("--window", ["stream", "--bootstrap", "127.0.0.1:1", "--out", "nowhere"]),
        ("--watermark", ["stream", "--bootstrap", "127.0.0.1:1", "--out", "nowhere"]),
        ("--for", ["fault", "kill", "1"]),
        ("--lag", ["fault", "slow-follower", "1"]),
        ("--delay", ["fault", "delay-responses", "1"]),
        ("--follower-lag", ["cluster"]),
        ("--replica-max-lag", ["cluster"]),
        ("--group-delay", ["cluster"]),
        ("--group-min-session", ["cluster"]),
        ("--retention", ["cluster"]),
        ("--duration", ["simulate", "steady"]),
        ("--tick", ["wheel"]),
        ("--delays", ["wheel"]),
        ("--start", ["wheel"]),
    ],
)
def test_all_duration_options_accept_the_same_values(
    option: str, words: list[str], run_command: RunCommand
) -> None:
    ran = run_command(*words, option, "10")
    assert (ran.status, ran.out) == (2, "")
    assert f"Invalid value for '{option}': '10' is not a duration; give a number" in ran.err
    assert ran.err.count("\n") == 1


def test_timedelta_is_a_duration_and_a_number_is_not() -> None:
    assert (Duration(timedelta(seconds=1.5)).whole_ms, str(Duration(timedelta(0)))) == (
        1_500,
        "0us",
    )
    with pytest.raises(ValueError, match="is below 0"):
        Duration(timedelta(seconds=-1))
    with pytest.raises(TypeError, match="30 has no unit; give text or a timedelta: '250ms'"):
        Duration(30)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 \N{MICRO SIGN}s"),
        (999, "999 \N{MICRO SIGN}s"),
        (10_625, "10.63 ms"),
        (999_949, "999.9 ms"),
        (999_950, "1 s"),
        (-999_999, "-1 s"),
        (119_949_999, "119.9 s"),
        (119_999_999, "2 min"),
        (7_199_999_999, "2 h"),
        (44_444_444_444_444, "12,350 h"),
    ],
)
def test_duration_is_shown_in_a_suitable_unit(us: int, text: str) -> None:
    assert duration_text(us) == text
