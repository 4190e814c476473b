"""The command ``purgatory fault``: have something go wrong in a cluster that runs."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from purgatory.cli import shared_options as options
from purgatory.cli.duration import Duration

Broker = Annotated[int, typer.Argument(help="The broker's number.")]
For = Annotated[
    Duration | None, options.duration_option("How long; without it, until ended.", "--for")
]
Count = Annotated[int | None, typer.Option(min=1, help="How many answers; without it, all.")]
Api = Annotated[
    str | None, typer.Option(help='Of this API only: "produce", "fetch", "offset_commit" ...')
]


def _delay(words: str) -> Any:
    return options.duration_option(words, least="0s", step="1us")


fault = typer.Typer(
    help="Have something go wrong in a cluster that runs (`purgatory cluster`).",
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


@fault.command()
def stall_follower(broker: Broker, for_: For = None) -> None:
    """Have a broker copy nothing: what it follows stands still."""
    _begin("stall_follower", broker=broker, for_=for_)


@fault.command()
def slow_follower(
    broker: Broker,
    lag: Annotated[Duration, _delay("How much longer it takes.")],
    for_: For = None,
) -> None:
    """Have a broker take longer for what it copies."""
    _begin("slow_follower", broker=broker, lag_ms=lag.ms, for_=for_)


@fault.command()
def kill(broker: Broker, for_: For = None) -> None:
    """Kill a broker as SIGKILL does; with --for, it comes back."""
    _begin("kill", broker=broker, for_=for_)


@fault.command()
def revive(broker: Broker) -> None:
    """Start a broker that was killed."""
    _ask("POST", f"/brokers/{broker}/revive")
    print(f"broker {broker} lives")


@fault.command()
def pause(broker: Broker, for_: For = None) -> None:
    """Have a broker do nothing, as SIGSTOP does."""
    _begin("pause", broker=broker, for_=for_)


@fault.command()
def shrink_isr(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    partition: Annotated[int, typer.Argument(help="The partition's number.")],
    broker: Broker,
    for_: For = None,
) -> None:
    """Put a follower out of a partition's ISR."""
    _begin("shrink_isr", topic=topic, partition=partition, broker=broker, for_=for_)


@fault.command()
def cut_link(
    a: Annotated[int, typer.Argument(help="One broker.")],
    b: Annotated[int, typer.Argument(help="The other.")],
    for_: For = None,
) -> None:
    """Let nothing pass between two brokers."""
    _begin("cut_link", a=a, b=b, for_=for_)


@fault.command()
def lose_answers(
    broker: Broker,
    count: Count = None,
    api: Api = None,
    keep_connection: Annotated[
        bool, typer.Option("--keep-connection", help="Let the client wait for its timeout.")
    ] = False,
    for_: For = None,
) -> None:
    """Do what is asked, and lose the answer."""
    cut = not keep_connection
    _begin("lose_answers", broker=broker, count=count, api=api, cut=cut, for_=for_)


@fault.command()
def delay_answers(
    broker: Broker,
    delay: Annotated[Duration, _delay("How much later they come.")],
    count: Count = None,
    api: Api = None,
    for_: For = None,
) -> None:
    """Send answers later."""
    _begin("delay_answers", broker=broker, by_ms=delay.ms, count=count, api=api, for_=for_)


@fault.command()
def duplicate_answers(
    broker: Broker, count: Count = None, api: Api = None, for_: For = None
) -> None:
    """Send answers twice."""
    _begin("duplicate_answers", broker=broker, count=count, api=api, for_=for_)


@fault.command()
def refuse_produces(broker: Broker, count: Count = None, for_: For = None) -> None:
    """Refuse produces: clients send them again, and those behind overtake."""
    _begin("refuse_produces", broker=broker, count=count, for_=for_)


@fault.command()
def cut_connections(
    broker: Annotated[int | None, typer.Argument(help="The broker; without it, all.")] = None,
) -> None:
    """Cut the clients' connections."""
    answer = _ask("POST", "/faults", {"kind": "cut_connections", "broker": broker})
    print(f"{answer['result']} connections were cut")


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


def _begin(kind: str, *, for_: Duration | None, **settings: Any) -> None:
    given = {name: value for name, value in settings.items() if value is not None}
    if for_ is not None:
        given["for_s"] = for_.seconds
    answer = _ask("POST", "/faults", {"kind": kind, **given})
    lasts = "until it is ended" if for_ is None else f"for {for_}"
    print(f"fault {answer['number']}: {kind.replace('_', '-')}, {lasts}")


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
        return _fail(json.load(error).get("error", str(error)))
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return _fail(f"no cluster answers at {_where['control']}: {reason}; see --control")


def _fail(message: str) -> Any:
    print(f"purgatory fault: {message}", file=sys.stderr)
    raise typer.Exit(2)
