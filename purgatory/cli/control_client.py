"""Requests of commands to the control of a running cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from purgatory.cli import options
from purgatory.cli.options import Decorator

DEFAULT_CONTROL = "http://127.0.0.1:9990"


def control_address(function: Any) -> Any:
    """Decorate a command with the options of its control's address."""
    decorators: list[Decorator] = [
        options.option(
            "--control",
            default=DEFAULT_CONTROL,
            envvar="PURGATORY_CONTROL",
            help="The control of the cluster, or of the proxy.",
        ),
        options.option("--token", envvar="PURGATORY_CONTROL_TOKEN", help="Token of the control."),
    ]
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def accept_address_behind(group: click.Group) -> None:
    """Have all subcommands of a group take the options of `control_address`, too."""
    for command in group.commands.values():
        if not command.hidden:
            command.params += [
                click.Option(
                    option.opts,
                    metavar=option.metavar,
                    help=option.help,
                    expose_value=False,
                    callback=_set_address,
                )
                for option in group.params
                if isinstance(option, click.Option)
            ]


def _set_address(context: click.Context, option: click.Parameter, value: str | None) -> None:
    client: ControlClient = context.obj
    if value is not None and option.name == "control":
        client.url = address_url(value)
    elif value is not None:
        client.token = value


def address_url(control: str) -> str:
    """The URL of a control from its address, which may lack the scheme."""
    return control.rstrip("/") if "://" in control else f"http://{control}"


class ControlClient:
    """Asks a control; an error ends the command, with one line.

    Args:
        command: its name, for errors: "purgatory fault".
        control: the control's address, with or without a scheme.
        token: its token; None or empty: none.
    """

    def __init__(self, command: str, control: str, token: str | None) -> None:
        self._command = command
        self.url = address_url(control)
        self.token = token

    def ask(self, method: str, path: str, body: object = None, timeout_s: float = 10) -> Any:
        """Return the response to a request."""
        with self._open(method, path, body, timeout_s) as response:
            return json.load(response)

    def lines(self, method: str, path: str, body: object = None) -> Iterator[str]:
        """Yield the lines of a stream, as they come."""
        with self._open(method, path, body, None) as response:
            for line in response:
                yield line.decode().rstrip("\n")

    def _open(self, method: str, path: str, body: object, timeout_s: float | None) -> Any:
        from urllib.error import HTTPError, URLError
        from urllib.request import Request, urlopen

        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            request = Request(f"{self.url}{path}", data, headers, method=method)
            return urlopen(request, timeout=timeout_s)
        except HTTPError as error:
            self.fail(json.load(error).get("error", str(error)))
        except (URLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            self.fail(f"no control responds at {self.url}: {reason}; see --control")

    def fail(self, message: str) -> NoReturn:
        """End the command with an error."""
        print(f"{self._command}: {message}", file=sys.stderr)
        raise click.exceptions.Exit(2)
