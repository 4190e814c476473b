"""The command ``purgatory``: its subcommands, and its errors.

An invalid command line is one line on standard error and exit status 2; only defects have a
traceback.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import groupby
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperGroup

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

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Test Kafka applications": {
        "cluster": "cluster_command",
        "proxy": "proxy_command",
        "fault": "fault_command",
    },
    "Analyze traces": {
        "analyze": "job_commands",
        "waits": "job_commands",
        "occupancy": "job_commands",
        "audit": "job_commands",
        "view": "view_command",
    },
    "Simulate": {
        "simulate": "simulate_command",
        "scenarios": "simulate_command",
        "sweep": "sweep_command",
        "wheel": "wheel_command",
    },
    "Streams and databases": {
        "stream": "stream_command",
        "capture": "capture_command",
        "apply": "apply_command",
    },
    "This machine": {
        "doctor": "doctor_command",
        "prepare": "prepare_command",
    },
}
"""The commands in the order of the help, with the module of their function or app."""

COMMANDS: Mapping[str, str] = {
    name: module for commands in GROUPS.values() for name, module in commands.items()
}

_COMPLETION_VARIABLE = "_PURGATORY_COMPLETE"
"""Is set where a shell asks how a command line may go on."""

_CONTEXT: Any = {"help_option_names": ["-h", "--help"]}
"""The settings of a command's context."""

_VALUES = (
    (re.compile(r"<list\[(.*)\]>"), r"<\1>"),
    (re.compile(r"<([^<>]*\|[^<>]*)>"), r"[\1]"),
    (re.compile(r"<int( range)?>"), "N"),
    (re.compile(r"<float( range)?>"), "NUMBER"),
    (re.compile(r"<[Pp]ath>"), "PATH"),
    (re.compile(r"<str>"), "TEXT"),
)
"""What help has in place of Typer's names for the values of options."""


class CommandGroup(TyperGroup):
    """A command with subcommands, whose help has them in groups and whole at any width."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        order = list(COMMANDS)
        names = sorted(self.commands, key=lambda name: order.index(name) if name in order else 0)
        rows = [
            (getattr(command, "rich_help_panel", None) or "Commands", name, _summary(command))
            for name, command in ((name, self.commands[name]) for name in names)
            if not command.hidden
        ]
        for panel, group in groupby(rows, key=lambda row: row[0]):
            with formatter.section(str(panel)):
                formatter.write_dl([(name, summary) for _, name, summary in group])


def _summary(command: Any) -> str:
    """The first paragraph of a command's help."""
    text = str(command.help or "").partition("\n\n")[0]
    return " ".join(text.replace("``", "").replace("`", "").split())


def _use_plain_values(command: Any) -> None:
    """Have the help of a command, and of its subcommands, name values as people do.

    And have values that need no conversion processed by `_plain_value`.
    """
    for parameter in command.get_params(typer.Context(command, **_CONTEXT)):
        parameter.get_help_record = partial(_plain_record, parameter, parameter.get_help_record)
        parameter.process_value = partial(_plain_value, parameter, parameter.process_value)
    for subcommand in getattr(command, "commands", {}).values():
        _use_plain_values(subcommand)


def _plain_record(parameter: Any, original: Any, context: Any) -> tuple[str, str] | None:
    record: tuple[str, str] | None = original(context)
    if record is None:
        return None
    name, text = record
    if parameter.param_type_name == "argument":  # it has its own name already
        name = re.sub(r" <[^|]*>$", "", name)
    for pattern, value in _VALUES:
        name = pattern.sub(value, name)
    return name, text


def _plain_value(parameter: Any, original: Any, context: Any, value: Any) -> Any:
    """Return the value of a parameter, without Typer if it is a text, a word or the default.

    For any value Typer imports pydantic, which takes as long as a small analysis.
    """
    descriptor, is_many = parameter.type_descriptor, parameter.multiple or parameter.nargs != 1
    kind = descriptor.annotation
    if not value:
        is_plain = not parameter.required and value in (None, [], False)
    elif get_origin(kind) is Literal:
        is_plain = value in get_args(kind)
    elif value is parameter.default:
        is_plain = type(value) is kind
    else:
        is_plain = kind in (str, list[str]) and descriptor.parameter_info.parser is None
    if not is_plain:
        return original(context, value)
    if is_many:
        value = () if value is None else list(value)
    return value if parameter.callback is None else parameter.callback(context, parameter, value)


def build_app(command_name: str = "") -> typer.Typer:
    """Build the program with one command, importing only its module; by default with all."""
    app = typer.Typer(
        name="purgatory",
        cls=CommandGroup,
        help="Test Kafka applications against a cluster with faults, simulate clusters, and show "
        "how long requests waited and what became of each record.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_CONTEXT,
    )
    app.callback()(purgatory)
    for panel, commands in GROUPS.items():
        for name, module in commands.items():
            if command_name not in (name, "") and command_name in COMMANDS:
                continue
            command = getattr(import_module(f"purgatory.cli.{module}"), name)
            if isinstance(command, typer.Typer):
                app.add_typer(command, name=name, cls=CommandGroup, rich_help_panel=panel)
            else:
                app.command(name, rich_help_panel=panel)(command)
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
    is_completion = _COMPLETION_VARIABLE in os.environ
    if not arguments and not is_completion:
        print(FIRST_STEPS)
        return 0
    command = next((word for word in arguments if not word.startswith("-")), "")
    try:
        program: Any = typer.main.get_command(build_app("" if is_completion else command))
        _use_plain_values(program)
        status = program(list(arguments), prog_name="purgatory", standalone_mode=False)
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
    text = text.replace("Input should be ", "must be ")
    return f"{program}: {text} (see {program} --help)"


def _print_error(message: str, status: int) -> int:
    if message:
        print(message, file=sys.stderr)
    return status
