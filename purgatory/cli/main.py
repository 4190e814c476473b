"""The command ``purgatory``: its subcommands, and its errors.

An invalid command line is one line on standard error and exit status 2; only defects have a
traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated

import typer

from purgatory import __version__
from purgatory.cli.extras import missing_extra

FIRST_STEPS = """\
See what waits inside of Kafka, and why. Try, one after the other:
  purgatory wheel                                    a timing wheel turns, step by step
  purgatory simulate slow-follower --trace my-trace  requests wait for a follower that stalls
  purgatory waits my-trace                           how long they waited, and which the longest
  purgatory cluster                                  brokers on this machine, for any Kafka client
purgatory --help lists all commands, purgatory COMMAND --help the options of one.\
"""

COMMANDS: Mapping[str, str] = {
    "wheel": "wheel_command",
    "simulate": "simulate_command",
    "scenarios": "simulate_command",
    "view": "view_command",
    "analyze": "job_commands",
    "waits": "job_commands",
    "occupancy": "job_commands",
    "audit": "job_commands",
    "sweep": "sweep_command",
    "cluster": "cluster_command",
    "proxy": "proxy_command",
    "stream": "stream_command",
    "apply": "apply_command",
    "capture": "capture_command",
    "prepare": "prepare_command",
    "fault": "fault_command",
}
"""The commands in the order of the help, with the module of their function or app."""


def build_app(command_name: str = "") -> typer.Typer:
    """Build the program with one command, importing only its module; by default with all."""
    app = typer.Typer(
        name="purgatory",
        help="Kafka's request purgatory and timing wheel: see one turn, simulate a cluster whose "
        "requests wait in it, and analyze the trace.",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(purgatory)
    for name in [command_name] if command_name in COMMANDS else COMMANDS:
        command = getattr(import_module(f"purgatory.cli.{COMMANDS[name]}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _print_version(show: bool) -> None:
    if show:
        print(f"purgatory {__version__}")
        raise typer.Exit


def purgatory(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """See ``build_app``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: what follows the program's name; those of the process by default.

    Returns:
        The exit status: 0, 2 for a mistake in the arguments, or what the command chose.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    if not arguments:
        print(FIRST_STEPS)
        return 0
    command = next((word for word in arguments if not word.startswith("-")), "")
    try:
        status = build_app(command)(list(arguments), prog_name="purgatory", standalone_mode=False)
    except typer.TyperException as error:
        # A group of commands without a command has printed its help: there is nothing to add.
        message = _error_message(error, command) if error.format_message() else ""
        return _print_error(message, error.exit_code)
    except typer.Abort:
        return _print_error("purgatory: aborted", 1)
    except ModuleNotFoundError as error:
        advice = missing_extra(command, error.name)
        if advice is None:
            raise
        return _print_error(advice, 2)
    return status if isinstance(status, int) else 0


def _error_message(error: typer.TyperException, command: str) -> str:
    # Errors that a command raises after parsing have no context.
    context = getattr(error, "ctx", None)
    program = f"purgatory {command}" if context is None else context.command_path
    text = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")
    return f"{program}: {text} (see {program} --help)"


def _print_error(message: str, status: int) -> int:
    if message:
        print(message, file=sys.stderr)
    return status
