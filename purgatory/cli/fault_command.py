"""The command ``purgatory fault``: have something go wrong in a cluster that runs.

There is a command for each kind of fault in ``KINDS``, with the kind's arguments.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NoReturn, get_type_hints

import typer

from purgatory.cli import shared_options as options
from purgatory.cli.duration import duration_parser
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import KINDS, CountedFault, CutConnections, Fault
from purgatory.settings.typed_duration import Duration


def _delay(words: str, name: str) -> Any:
    return options.duration_option(words, name, least="0s", step="1us")


def _signed_ms(text: str | int) -> int:
    """Return a duration in milliseconds, below 0 with a minus before it."""
    typed = str(text)
    length_ms = duration_parser()(typed.removeprefix("-")).whole_ms
    return -length_ms if typed.startswith("-") else length_ms


_TYPED: Mapping[str, object] = {
    "broker": typer.Argument(help="The broker's number."),
    "a": typer.Argument(help="One broker."),
    "b": typer.Argument(help="The other."),
    "topic": typer.Argument(help="The topic."),
    "partition": typer.Argument(help="The partition's number."),
    "lag_ms": _delay("How much longer it takes.", "--lag"),
    "by_ms": _delay(
        "How much later they come; with a distribution: the least, the mean or the median.",
        "--delay",
    ),
    "to_ms": _delay("With --distribution uniform: the longest.", "--delay-to"),
    "p75_ms": _delay("With --distribution lognormal: the 75th percentile.", "--delay-p75"),
    "throttle_ms": options.duration_option("How long clients are told to wait.", "--throttle"),
    "jump_ms": typer.Option(
        "--jump", parser=_signed_ms, metavar="DURATION", help="Forward, or back: 8h, -90s."
    ),
    "distribution": typer.Option(help="How the delays are spread."),
    "error": typer.Option(help="The error, by its Kafka name: NOT_LEADER_OR_FOLLOWER ..."),
    "after": typer.Option(
        "--after", show_default=False, help="Do what is asked first, and tell the error then."
    ),
    "group_id": typer.Option("--group", help="What is asked for this group only."),
    "transactional_id": typer.Option(help="What is asked with this transactional.id only."),
    "operation": typer.Option(help="What is done there; without it, all."),
    "epochs": typer.Option(min=1, help="By how many."),
    "keep_bytes": typer.Option(min=0, help="So many bytes come; without it, half of them."),
    "bytes_per_s": typer.Option("--rate", min=1, help="So many bytes a second."),
    "seed": options.seed_option,
    "lost_records": typer.Option(
        min=0, help="Of each of its logs, so many of the last records are gone then."
    ),
    "count": typer.Option(min=1, help="How many messages; without it, all."),
    "api": typer.Option(help="Of this API only: Produce, Fetch, OffsetCommit ..."),
    "client_id": typer.Option(help="Of the client with this client.id only."),
    "share": typer.Option(help="Each with this probability."),
    "cut": typer.Option(
        " /--keep-connection", show_default=False, help="Let the client wait for its timeout."
    ),
    "for_s": options.duration_option("How long; without it, until ended.", "--for"),
}
"""How the arguments of faults are typed, by their names."""

_TYPED_IF_GIVEN: Mapping[str, object] = {
    "broker": typer.Argument(help="The broker's number; without it, all brokers."),
    "topic": typer.Option(help="What is asked about this topic only."),
    "partition": typer.Option(min=0, help="What is asked about partitions of this number only."),
}
"""How those are typed that may be left out here, and must be given elsewhere."""

fault = typer.Typer(
    help="Inject a fault into a running cluster (`purgatory cluster`).",
    no_args_is_help=True,
)
_where = {"control": "http://127.0.0.1:9990", "token": ""}


@fault.callback()
def at(
    control: Annotated[
        str, typer.Option(envvar="PURGATORY_CONTROL", help="The cluster's control.")
    ] = "http://127.0.0.1:9990",
    token: Annotated[
        str, typer.Option(envvar="PURGATORY_CONTROL_TOKEN", help="What the control asks for.")
    ] = "",
) -> None:
    """See ``fault``."""
    _where["control"] = control.rstrip("/") if "://" in control else f"http://{control}"
    _where["token"] = token


def _command_of(kind: type[Fault]) -> Callable[..., None]:
    """Return a function that typer makes the command of this kind from."""
    hints = get_type_hints(kind)

    def command(**typed: Any) -> None:
        try:
            asked = kind(**{name: _in_units(name, value, hints) for name, value in typed.items()})
        except ClusterError as error:
            _fail(str(error))
        _begin(asked, typed.get("for_s"))

    signature = inspect.signature(kind)
    parameters = [
        one.replace(annotation=Annotated[hints[name], _typed(name, one)])
        for name, one in signature.parameters.items()
    ]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _typed(name: str, argument: inspect.Parameter) -> object:
    if argument.default is None and name in _TYPED_IF_GIVEN:
        return _TYPED_IF_GIVEN[name]
    return _TYPED[name]


def _in_units(name: str, value: Any, hints: Mapping[str, object]) -> Any:
    """Return what was typed as a fault takes it: a duration in the unit at the end of its name."""
    if not isinstance(value, Duration):
        return value
    if hints[name] is int:
        return value.whole_ms
    return value.seconds if name.endswith("_s") else value.ms


for _kind in KINDS.values():
    _help = str(_kind.__doc__).partition("\n")[0]
    fault.command(_kind.kind.replace("_", "-"), help=_help)(_command_of(_kind))


@fault.command()
def revive(broker: Annotated[int, _TYPED["broker"]]) -> None:
    """Start a broker that was killed."""
    _ask("POST", f"/brokers/{broker}/revive")
    print(f"broker {broker} lives")


@fault.command()
def end(
    number: Annotated[int | None, typer.Argument(help="Its number; without it, all.")] = None,
) -> None:
    """End a fault, or all."""
    if number is None:
        print(f"{_ask('DELETE', '/faults')['ended']} faults were ended")
    else:
        _ask("DELETE", f"/faults/{number}")
        print(f"fault {number} was ended")


@fault.command("list")
def list_faults() -> None:
    """List the faults that are in force."""
    faults = [one for one in _ask("GET", "/state")["faults"] if one["ended_s"] is None]
    for one in faults:
        settings = " ".join(f"{name}={value}" for name, value in one["settings"].items())
        print(f"{one['number']:>4}  {one['kind']}  {settings}")
    if not faults:
        print("no fault is in force")


def _begin(fault: Fault, for_: Duration | None) -> None:
    lasts = {} if fault.for_s is None else {"for_s": fault.for_s}
    answer = _ask("POST", "/faults", {"kind": fault.kind, **fault.settings, **lasts})
    if isinstance(fault, CutConnections):
        print(f"{answer['result']} connections were cut")
        return
    print(f"fault {answer['number']}: {fault.kind.replace('_', '-')}, {_how_long(fault, for_)}")


def _how_long(fault: Fault, for_: Duration | None) -> str:
    if not isinstance(fault, CountedFault) or fault.count is None:
        return "until it is ended" if for_ is None else f"for {for_}"
    times = "once" if fault.count == 1 else f"{fault.count} times"
    return times if for_ is None else f"{times}, or for {for_}"


def _ask(method: str, path: str, body: object = None) -> Any:
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    data = None if body is None else json.dumps(body).encode()
    url = f"{_where['control']}{path}"
    headers = {"Content-Type": "application/json"}
    if _where["token"]:
        headers["Authorization"] = f"Bearer {_where['token']}"
    try:
        with urlopen(Request(url, data, headers, method=method), timeout=10) as answer:
            return json.load(answer)
    except HTTPError as error:
        _fail(json.load(error).get("error", str(error)))
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        _fail(f"no cluster answers at {_where['control']}: {reason}; see --control")


def _fail(message: str) -> NoReturn:
    print(f"purgatory fault: {message}", file=sys.stderr)
    raise typer.Exit(2)
