"""The command ``purgatory fault``: inject a fault into a running cluster, or at a proxy.

There is a command for each kind of fault in ``KINDS``, with the kind's arguments.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NoReturn, get_type_hints

import typer

from purgatory.cli import options
from purgatory.cli.options import duration_parser
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import FORMER_KINDS, KINDS, CountedFault, CutConnections, Fault
from purgatory.settings.typed_duration import Duration


def _delay(duration: str, name: str) -> Any:
    return options.duration_option(duration, name, least="0s", step="1us")


def _signed_ms(text: str | int) -> int:
    """Return a duration in milliseconds, below 0 with a minus before it."""
    text_value = str(text)
    length_ms = duration_parser()(text_value.removeprefix("-")).whole_ms
    return -length_ms if text_value.startswith("-") else length_ms


_PARAMETERS: Mapping[str, object] = {
    "broker": typer.Argument(help="The broker's number."),
    "a": typer.Argument(help="One broker."),
    "b": typer.Argument(help="The other."),
    "topic": typer.Argument(help="The topic."),
    "partition": typer.Argument(help="The partition's number."),
    "lag_ms": _delay("Additional lag.", "--lag"),
    "by_ms": _delay(
        "Delay; with a distribution its minimum, mean or median.",
        "--delay",
    ),
    "to_ms": _delay("With --distribution uniform: the maximum.", "--delay-to"),
    "p75_ms": _delay("With --distribution lognormal: the 75th percentile.", "--delay-p75"),
    "throttle_ms": options.duration_option("Throttle time of the responses.", "--throttle"),
    "jump_ms": typer.Option(
        "--jump", parser=_signed_ms, metavar="DURATION", help="Forward, or back: 8h, -90s."
    ),
    "distribution": typer.Option(help="Distribution of the delays."),
    "error": typer.Option(help="The error's name in Kafka: NOT_LEADER_OR_FOLLOWER ..."),
    "after": typer.Option(
        "--after", show_default=False, help="Execute the request, then respond with the error."
    ),
    "group_id": typer.Option("--group", help="Only requests of this group."),
    "transactional_id": typer.Option(help="Only requests with this transactional.id."),
    "operation": typer.Option(help="Only this operation; by default all."),
    "epochs": typer.Option(min=1, help="Number of epochs."),
    "keep_bytes": typer.Option(min=0, help="Bytes that are sent; by default half of them."),
    "bytes_per_s": typer.Option("--rate", min=1, help="Bytes per second."),
    "skip": typer.Option(min=0, help="Number of messages that pass first."),
    "seed": options.seed_option,
    "lost_records": typer.Option(min=0, help="Number of records lost at the end of each log."),
    "count": typer.Option(min=1, help="Number of messages; by default all."),
    "api": typer.Option(help="Only this API: Produce, Fetch, OffsetCommit ..."),
    "client_id": typer.Option(help="Only the client with this client.id."),
    "share": typer.Option(help="Probability for each message."),
    "cut": typer.Option(
        " /--keep-connection",
        show_default=False,
        help="Keep the connection: the client waits for its timeout.",
    ),
    "for_s": options.duration_option("Duration; by default until purgatory fault end.", "--for"),
}
"""The arguments and options of faults, by the names of their parameters."""

_OPTIONAL: Mapping[str, object] = {
    "broker": typer.Argument(help="The broker's number; by default all brokers."),
    "topic": typer.Option(help="Only requests for this topic."),
    "partition": typer.Option(min=0, help="Only requests for partitions of this number."),
}
"""The same of parameters that are optional in some faults and required in others."""

fault = typer.Typer(
    help="Inject a fault into a running cluster (`purgatory cluster`), or into the connections of "
    "a proxy (`purgatory proxy`).",
    no_args_is_help=True,
)
_address = {"control": "http://127.0.0.1:9990", "token": ""}


@fault.callback()
def at(
    control: Annotated[
        str,
        typer.Option(
            envvar="PURGATORY_CONTROL", help="The control of the cluster, or of the proxy."
        ),
    ] = "http://127.0.0.1:9990",
    token: Annotated[
        str, typer.Option(envvar="PURGATORY_CONTROL_TOKEN", help="Token of the control.")
    ] = "",
) -> None:
    """See ``fault``."""
    _address["control"] = control.rstrip("/") if "://" in control else f"http://{control}"
    _address["token"] = token


def _make_command(kind: type[Fault]) -> Callable[..., None]:
    """Return a function that typer makes the command of this kind from."""
    hints = get_type_hints(kind)

    def command(**values: Any) -> None:
        try:
            fault = kind(
                **{name: _convert_units(name, value, hints) for name, value in values.items()}
            )
        except ClusterError as error:
            _exit_with_error(str(error))
        _begin(fault, values.get("for_s"))

    signature = inspect.signature(kind)
    parameters = [
        parameter.replace(annotation=Annotated[hints[name], _parameter(name, parameter)])
        for name, parameter in signature.parameters.items()
    ]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {
        command_parameter.name: command_parameter.annotation for command_parameter in parameters
    }
    return command


def _parameter(name: str, argument: inspect.Parameter) -> object:
    if argument.default is None and name in _OPTIONAL:
        return _OPTIONAL[name]
    return _PARAMETERS[name]


def _convert_units(name: str, value: Any, hints: Mapping[str, object]) -> Any:
    """Return an argument as a setting of a fault: durations in the unit of its name."""
    if not isinstance(value, Duration):
        return value
    if hints[name] is int:
        return value.whole_ms
    return value.seconds if name.endswith("_s") else value.ms


for _kind in KINDS.values():
    _help = str(_kind.__doc__).partition("\n")[0]
    fault.command(_kind.kind.replace("_", "-"), help=_help)(_make_command(_kind))


def _make_former_command(instead: str) -> Callable[[typer.Context], None]:
    def command(context: typer.Context) -> None:
        _exit_with_error(f"the fault {context.info_name} is gone; use {instead}")

    return command


for _former, _instead in FORMER_KINDS.items():
    fault.command(
        _former.replace("_", "-"),
        hidden=True,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(_make_former_command(_instead.replace("_", "-")))


@fault.command()
def revive(broker: Annotated[int, _PARAMETERS["broker"]]) -> None:
    """Start a broker that was killed."""
    _request("POST", f"/brokers/{broker}/revive")
    print(f"broker {broker} is alive")


@fault.command()
def end(
    number: Annotated[
        int | None, typer.Argument(help="The fault's number; by default all.")
    ] = None,
) -> None:
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
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    data = None if body is None else json.dumps(body).encode()
    url = f"{_address['control']}{path}"
    headers = {"Content-Type": "application/json"}
    if _address["token"]:
        headers["Authorization"] = f"Bearer {_address['token']}"
    try:
        with urlopen(Request(url, data, headers, method=method), timeout=10) as response:
            return json.load(response)
    except HTTPError as error:
        _exit_with_error(json.load(error).get("error", str(error)))
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        _exit_with_error(f"no control responds at {_address['control']}: {reason}; see --control")


def _exit_with_error(message: str) -> NoReturn:
    print(f"purgatory fault: {message}", file=sys.stderr)
    raise typer.Exit(2)
