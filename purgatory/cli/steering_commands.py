"""The commands that steer a running cluster beside faults: ``requests``, ``wait``, ``move`` and
``brokers``.

Each is a request to the control, and its answer lines of JSON or nothing: for tests by a shell, or
in any language.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import click

from purgatory.cli import options
from purgatory.cli.command_group import CommandGroup
from purgatory.cli.control_client import ControlClient, accept_address_behind, control_address
from purgatory.cli.options import Decorator
from purgatory.settings.typed_duration import Duration

_ANSWER_MARGIN_S = 10
_REMOVAL_S = 60


def _begin(context: click.Context, control: str, token: str | None) -> None:
    context.obj = ControlClient(f"purgatory {context.info_name}", control, token)


def _given(**values: Any) -> dict[str, Any]:
    """Return the arguments that were given."""
    return {name: value for name, value in values.items() if value is not None}


def _filters(function: Any) -> Any:
    """Decorate a command with the options that select requests."""
    decorators: list[Decorator] = [
        options.option("--api", help="Only this API: Produce, Fetch, OffsetCommit ..."),
        options.option("--client-id", help="Only the client with this client.id."),
        options.option("--topic", help="Only requests that name this topic."),
        options.number_option("--broker", least=0, help="Only requests to this broker."),
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def _timeout(function: Any) -> Any:
    return options.duration_option(
        "--timeout", "How long to wait; then the exit status is 2.", default=Duration("10s")
    )(function)


# Requests.


@click.group(cls=CommandGroup, no_args_is_help=True)
@control_address
@click.pass_context
def requests(context: click.Context, control: str, token: str | None) -> None:
    """See the requests of a cluster's clients, as lines of JSON, and answer them."""
    _begin(context, control, token)


@requests.command("list")
@_filters
@click.pass_obj
def list_requests(client: ControlClient, /, **filters: Any) -> None:
    """List the latest requests, with their answers."""
    for seen in client.ask("GET", f"/requests?{urlencode(_given(**filters))}")["requests"]:
        print(json.dumps(seen))


@requests.command()
@_filters
@click.pass_obj
def live(client: ControlClient, /, **filters: Any) -> None:
    """Print each request when it is answered, until this command ends."""
    for line in client.lines("GET", f"/requests/live?{urlencode(_given(**filters))}"):
        print(line, flush=True)


@requests.command()
@_filters
@options.duration_option("--hold", "Time until a request passes.", default=Duration("10s"))
@click.pass_obj
def hold(client: ControlClient, /, hold: Duration, **filters: Any) -> None:
    """Print each request when it comes, and hold it for `purgatory requests answer`.

    When this command ends, those that are held pass.
    """
    body = {**_given(**filters), "hold_s": hold.seconds}
    for line in client.lines("POST", "/requests/held", body):
        print(line, flush=True)


@requests.command()
@click.argument("number", type=int, help="The request's number.")
@options.option("--error", help="The error's name in Kafka: NOT_LEADER_OR_FOLLOWER ...")
@options.option("--fields", help="Answer with these fields, in JSON.")
@options.duration_option("--delay", "Wait so long before.", least="0s")
@click.pass_obj
def answer(
    client: ControlClient,
    number: int,
    error: str | None,
    fields: str | None,
    delay: Duration | None,
) -> None:
    """Answer a request that is held, or let it pass."""
    body = _given(error=error, delay_s=None if delay is None else delay.seconds)
    if fields is not None:
        try:
            body["answer"] = json.loads(fields)
        except ValueError as wrong:
            client.fail(f"--fields: {wrong}")
    client.ask("POST", f"/requests/{number}", body)


@requests.command()
@click.pass_obj
def clear(client: ControlClient) -> None:
    """Forget the requests so far."""
    client.ask("DELETE", "/requests", {})


# Waits.


@click.group(cls=CommandGroup, no_args_is_help=True)
@control_address
@click.pass_context
def wait(context: click.Context, control: str, token: str | None) -> None:
    """Wait until a cluster is as a test needs it."""
    _begin(context, control, token)


def _wait(
    client: ControlClient, kind: str, timeout: Duration, arguments: Mapping[str, Any]
) -> None:
    body = {"kind": kind, "timeout_s": timeout.seconds, **arguments}
    client.ask("POST", "/wait", body, timeout.seconds + _ANSWER_MARGIN_S)


@wait.command("requests")
@_filters
@options.number_option("--count", least=1, default=1, help="Number of requests.")
@_timeout
@click.pass_obj
def wait_for_requests(client: ControlClient, /, timeout: Duration, **arguments: Any) -> None:
    """Wait until requests came, also before this command."""
    _wait(client, "requests", timeout, _given(**arguments))


@wait.command()
@click.argument("group_id", metavar="GROUP", help="The group.")
@options.number_option("--members", least=1, help="Number of members; by default any.")
@_timeout
@click.pass_obj
def group_stable(
    client: ControlClient, group_id: str, members: int | None, timeout: Duration
) -> None:
    """Wait until a group is stable."""
    _wait(client, "group_stable", timeout, _given(group_id=group_id, members=members))


@wait.command()
@click.argument("group_id", metavar="GROUP", help="The group.")
@_timeout
@click.pass_obj
def caught_up(client: ControlClient, /, group_id: str, timeout: Duration) -> None:
    """Wait until a group has committed all records of its partitions."""
    _wait(client, "caught_up", timeout, {"group_id": group_id})


@wait.command()
@click.argument("topic", help="The topic.")
@click.argument("partition", type=int, help="The partition's number.")
@click.argument("brokers", type=int, nargs=-1, required=True, help="The brokers.")
@_timeout
@click.pass_obj
def isr(
    client: ControlClient, topic: str, partition: int, brokers: Sequence[int], timeout: Duration
) -> None:
    """Wait until exactly these brokers are in sync."""
    arguments = {"topic": topic, "partition": partition, "brokers": list(brokers)}
    _wait(client, "isr", timeout, arguments)


@wait.command()
@click.argument("fault", type=int, help="The fault's number.")
@options.number_option("--count", least=1, default=1, help="Number of injections.")
@_timeout
@click.pass_obj
def uses(client: ControlClient, /, fault: int, count: int, timeout: Duration) -> None:
    """Wait until a fault was injected."""
    _wait(client, "uses", timeout, {"fault": fault, "count": count})


# Moves, and brokers.


@click.group(cls=CommandGroup, no_args_is_help=True)
@control_address
@click.pass_context
def move(context: click.Context, control: str, token: str | None) -> None:
    """Move a role to another broker, without a death."""
    _begin(context, control, token)


@move.command()
@click.argument("topic", help="The topic.")
@click.argument("partition", type=int, help="The partition's number.")
@click.argument("broker", type=int, help="The broker, whose replica is in sync.")
@click.pass_obj
def leader(client: ControlClient, /, topic: str, partition: int, broker: int) -> None:
    """Move the leader of a partition."""
    body = {"kind": "leader", "topic": topic, "partition": partition, "to": broker}
    client.ask("POST", "/move", body)


@move.command()
@click.argument("broker", type=int, help="The broker.")
@options.option("--group", help="The group.")
@options.option("--transactional-id", help="The transactional.id.")
@click.pass_obj
def coordinator(
    client: ControlClient, broker: int, group: str | None, transactional_id: str | None
) -> None:
    """Move the coordinator of a group or a transactional id."""
    chosen = _given(group_id=group, transactional_id=transactional_id)
    client.ask("POST", "/move", {"kind": "coordinator", "to": broker, **chosen})


@move.command()
@click.argument("broker", type=int, help="The broker.")
@click.pass_obj
def controller(client: ControlClient, /, broker: int) -> None:
    """Have clients told that this broker is the controller."""
    client.ask("POST", "/move", {"kind": "controller", "to": broker})


@click.group(cls=CommandGroup, no_args_is_help=True)
@control_address
@click.pass_context
def brokers(context: click.Context, control: str, token: str | None) -> None:
    """Add and remove brokers of a running cluster."""
    _begin(context, control, token)


@brokers.command()
@click.pass_obj
def add(client: ControlClient) -> None:
    """Start one more broker."""
    print(f"broker {client.ask('POST', '/brokers', {})['broker']} is alive")


@brokers.command()
@click.argument("broker", type=int, help="The broker's number.")
@click.pass_obj
def remove(client: ControlClient, /, broker: int) -> None:
    """Move a broker's replicas to others, and stop it."""
    client.ask("DELETE", f"/brokers/{broker}", {}, _REMOVAL_S)
    print(f"broker {broker} was removed")


for _group in (requests, wait, move, brokers):
    accept_address_behind(_group)
