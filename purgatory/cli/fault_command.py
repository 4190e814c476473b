"""The command ``purgatory fault``: inject a fault into a running cluster, or at a proxy.

There is a command for each kind of fault in ``KINDS``, with the kind's arguments.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

import click

from purgatory.cli import options
from purgatory.cli.command_group import CommandGroup
from purgatory.cli.control_client import ControlClient, accept_address_behind, control_address
from purgatory.cli.options import Decorator, duration_parser
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import FORMER_KINDS, KINDS, CountedFault, CutConnections, Fault
from purgatory.settings.typed_duration import Duration


def _signed_ms(text: str | int) -> int:
    """Return a duration in milliseconds, below 0 with a minus before it."""
    text_value = str(text)
    length_ms = duration_parser()(text_value.removeprefix("-")).whole_ms
    return -length_ms if text_value.startswith("-") else length_ms


def _error_names(text: str | Sequence[str | None]) -> Sequence[str | None]:
    """Return errors; "none" is one that passes."""
    return text.split(",") if isinstance(text, str) else text


_POSITIONAL: Mapping[str, str] = {
    "broker": "The broker's number.",
    "a": "One broker.",
    "b": "The other.",
    "topic": "The topic.",
    "partition": "The partition's number.",
}
"""The help of arguments without an option's name."""

_ANY_BROKER = "The broker's number; by default all brokers."


class _Option(NamedTuple):
    """A parameter of faults as an option.

    Args:
        name: of the option.
        help: its help.
        type: the option's type, where that is not the parameter's.
        attributes: further ones of the option.
    """

    name: str
    help: str
    type: Any = None
    attributes: Mapping[str, Any] = {}


def _duration(name: str, help_text: str, **limits: str) -> _Option:
    return _Option(name, help_text, duration_parser(**limits), {"metavar": "DURATION"})


def _delay(name: str, help_text: str) -> _Option:
    return _duration(name, help_text, least="0s", step="1us")


def _number(name: str, help_text: str, least: int = 0) -> _Option:
    return _Option(name, help_text, click.IntRange(least), {"metavar": "N"})


_OPTIONS: Mapping[str, _Option] = {
    "lag_ms": _delay("--lag", "Additional lag."),
    "by_ms": _delay("--delay", "Delay; with a distribution its minimum, mean or median."),
    "to_ms": _delay("--delay-to", "With --distribution uniform: the maximum."),
    "p75_ms": _delay("--delay-p75", "With --distribution lognormal: the 75th percentile."),
    "throttle_ms": _duration("--throttle", "Throttle time of the responses."),
    "jump_ms": _Option(
        "--jump", "Forward, or back: 8h, -90s.", _signed_ms, {"metavar": "DURATION"}
    ),
    "distribution": _Option("--distribution", "Distribution of the delays."),
    "error": _Option("--error", "The error's name in Kafka: NOT_LEADER_OR_FOLLOWER ..."),
    "errors": _Option(
        "--errors",
        "One error after the other, none for a request that passes: A,none,B.",
        _error_names,
        {"metavar": "NAMES"},
    ),
    "after": _Option("--after", "Execute the request, then respond with the error."),
    "group_id": _Option("--group", "Only requests of this group."),
    "transactional_id": _Option("--transactional-id", "Only requests with this transactional.id."),
    "operation": _Option("--operation", "Only this operation; by default all."),
    "epochs": _number("--epochs", "Number of epochs.", 1),
    "keep_bytes": _number("--keep-bytes", "Number of bytes to send; by default half of them."),
    "bytes_per_s": _number("--rate", "Bytes per second.", 1),
    "skip": _number("--skip", "Number of messages that pass first."),
    "lost_records": _number("--lost-records", "Number of records lost at the end of each log."),
    "count": _number("--count", "Number of messages; by default all.", 1),
    "api": _Option("--api", "Only this API: Produce, Fetch, OffsetCommit ..."),
    "client_id": _Option("--client-id", "Only the client with this client.id."),
    "share": _Option(
        "--share", "Probability for each message.", click.FLOAT, {"metavar": "NUMBER"}
    ),
    "cut": _Option(
        " /--keep-connection",
        "Keep the connection: the client waits for its timeout.",
    ),
    "for_s": _duration("--for", "Duration; by default until purgatory fault end."),
    "topic": _Option("--topic", "Only requests for this topic."),
    "partition": _number("--partition", "Only requests for partitions of this number."),
}


@click.group(cls=CommandGroup, no_args_is_help=True)
@control_address
@click.pass_context
def fault(context: click.Context, control: str, token: str | None) -> None:
    """Inject a fault into a running cluster (`purgatory cluster`), or into the connections
    of a proxy (`purgatory proxy`).
    """
    context.obj = ControlClient("purgatory fault", control, token)


def _make_command(kind: type[Fault]) -> click.Command:
    """Return the command of a kind of faults, which has the kind's parameters."""
    hints = get_type_hints(kind)

    def command(**values: Any) -> None:
        try:
            fault = kind(
                **{name: _convert_units(name, value, hints) for name, value in values.items()}
            )
        except ClusterError as error:
            _exit_with_error(str(error))
        _begin(fault, values.get("for_s"))

    for name, parameter in reversed(list(inspect.signature(kind).parameters.items())):
        command = _decorator(name, hints[name], parameter.default)(command)
    help_text = str(kind.__doc__).partition("\n")[0]
    return click.command(kind.kind.replace("_", "-"), help=help_text)(command)


def _decorator(name: str, hint: Any, default: Any) -> Decorator:
    required = default is inspect.Parameter.empty
    if name in _POSITIONAL and required:
        return click.argument(name, type=_click_type(hint), help=_POSITIONAL[name])
    if name == "broker":
        return click.argument(name, type=_click_type(hint), required=False, help=_ANY_BROKER)
    if name == "seed":
        return options.seed
    row = _OPTIONS[name]
    if hint is bool:
        return click.option(
            row.name, name, is_flag=True, default=default, show_default=False, help=row.help
        )
    return options.option(
        row.name,
        name,
        type=row.type or _click_type(hint),
        help=row.help,
        **({"required": True} if required else {"default": default}),
        **row.attributes,
    )


def _click_type(hint: Any) -> Any:
    """The type of an option by the type of a fault's parameter."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(kind for kind in get_args(hint) if kind is not types.NoneType)
    return click.Choice(get_args(hint)) if get_origin(hint) is Literal else hint


def _convert_units(name: str, value: Any, hints: Mapping[str, object]) -> Any:
    """Return an argument as a setting of a fault: durations in the unit of its name."""
    if not isinstance(value, Duration):
        return value
    if hints[name] is int:
        return value.whole_ms
    return value.seconds if name.endswith("_s") else value.ms


for _kind in KINDS.values():
    fault.add_command(_make_command(_kind))


def _make_former_command(former: str, instead: str) -> click.Command:
    @click.command(
        former,
        hidden=True,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def command() -> None:
        _exit_with_error(f"the fault {former} is gone; use {instead}")

    return command


for _former, _instead in FORMER_KINDS.items():
    fault.add_command(_make_former_command(_former.replace("_", "-"), _instead.replace("_", "-")))


@fault.command()
@click.argument("broker", type=int, help=_POSITIONAL["broker"])
def revive(broker: int) -> None:
    """Start a broker that was killed."""
    _request("POST", f"/brokers/{broker}/revive")
    print(f"broker {broker} is alive")


@fault.command()
@click.argument("number", type=int, required=False, help="The fault's number; by default all.")
def end(number: int | None) -> None:
    """End a fault, or all."""
    if number is None:
        print(f"{_request('DELETE', '/faults')['ended']} faults were ended")
    else:
        _request("DELETE", f"/faults/{number}")
        print(f"fault {number} was ended")


@fault.command("list")
def list_faults() -> None:
    """List the active faults."""
    faults = [active for active in _request("GET", "/state")["faults"] if active["ended_s"] is None]
    for active in faults:
        settings = " ".join(f"{name}={value}" for name, value in active["settings"].items())
        print(f"{active['number']:>4}  {active['kind']}  {settings}")
    if not faults:
        print("no fault is active")


accept_address_behind(fault)


def _begin(fault: Fault, for_: Duration | None) -> None:
    duration = {} if fault.for_s is None else {"for_s": fault.for_s}
    response = _request("POST", "/faults", {"kind": fault.kind, **fault.settings, **duration})
    if isinstance(fault, CutConnections):
        print(f"{response['result']} connections were cut")
        return
    print(
        f"fault {response['number']}: {fault.kind.replace('_', '-')}, {_duration_text(fault, for_)}"
    )


def _duration_text(fault: Fault, for_: Duration | None) -> str:
    if not isinstance(fault, CountedFault) or fault.count is None:
        return "until purgatory fault end" if for_ is None else f"for {for_}"
    times = "once" if fault.count == 1 else f"{fault.count} times"
    return times if for_ is None else f"{times}, or for {for_}"


def _request(method: str, path: str, body: object = None) -> Any:
    return _client().ask(method, path, body)


def _exit_with_error(message: str) -> NoReturn:
    _client().fail(message)


def _client() -> ControlClient:
    client: ControlClient = click.get_current_context().obj
    return client
