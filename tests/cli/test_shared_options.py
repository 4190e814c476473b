"""One dialect: an option that several commands have is the same option in all of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import typer

from purgatory.cli.main import app_of
from purgatory.cli.shared_options import client_settings

OWN_MEANING = {"--engine", "--topic"}
"""A topic that is created, written to or read; and what computes a job, or applies a topic."""


def options_of(command: Any, path: str = "purgatory") -> dict[tuple[str, str], Any]:
    """All options of a command and of those below it, by name and command."""
    found = {
        (name, path): option
        for option in command.params
        if option.param_type_name == "option"
        for name in option.opts
        if name.startswith("--") and name != "--help"
    }
    for name, inner in getattr(command, "commands", {}).items():
        found |= options_of(inner, f"{path} {name}")
    return found


def test_an_option_of_several_commands_is_one_option() -> None:
    told = defaultdict(set)
    for (name, _), option in options_of(typer.main.get_command(app_of())).items():
        told[name].add((option.help, str(option.metavar), option.multiple))
    assert len(told) > 70
    assert {name for name, ways in told.items() if len(ways) > 1} == OWN_MEANING


def test_no_option_is_a_number_of_milliseconds() -> None:
    names = {name for name, _ in options_of(typer.main.get_command(app_of()))}
    assert not {name for name in names if name.endswith(("-us", "-ms", "-s", "-seconds"))}


def test_settings_of_the_client_are_those_of_librdkafka() -> None:
    given = ["security.protocol=SSL", "sasl.password=a=b", "client.id="]
    assert client_settings(given) == {
        "security.protocol": "SSL",
        "sasl.password": "a=b",
        "client.id": "",
    }
    assert client_settings(None) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("acks", "'acks': write NAME=VALUE, as in security.protocol=SSL"),
        ("=1", "'=1': write NAME=VALUE"),
        ("error_cb=print", "error_cb takes a function of a program"),
        ("logger=x", "logger takes a function of a program"),
    ],
)
def test_what_is_no_setting_is_refused(text: str, message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        client_settings([text])
