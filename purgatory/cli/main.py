"""The command ``purgatory``: its subcommands, and its errors.

An invalid command line is one line on standard error and exit status 2; only defects have a
traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module

import click
from click.exceptions import NoArgsIsHelpError, NoSuchCommand

from purgatory import __version__
from purgatory.cli.command_group import OWN_PROCESS, CommandGroup
from purgatory.cli.completion import COMPLETION_VARIABLE, completion_options
from purgatory.cli.extras import missing_extra

FIRST_STEPS = """\
See which requests wait inside of Kafka, and why. Try, one after the other:
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
        "requests": "steering_commands",
        "wait": "steering_commands",
        "move": "steering_commands",
        "brokers": "steering_commands",
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
"""The commands in the order of the help, with the module of each."""

COMMANDS: Mapping[str, str] = {
    name: module for commands in GROUPS.values() for name, module in commands.items()
}


class LazyGroup(CommandGroup):
    """The group of all commands, each of which is imported when it is used."""

    def panels(self) -> Mapping[str, Collection[str]]:
        return GROUPS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"purgatory.cli.{COMMANDS[cmd_name]}")
        command = getattr(module, cmd_name)
        # The doctor is a function: it runs without click, too.
        return command if isinstance(command, click.Command) else click.command(cmd_name)(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            raise NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None


@click.command(
    "purgatory",
    cls=LazyGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(
    __version__, message="purgatory %(version)s", help="Print the version and exit."
)
@completion_options
def program() -> None:
    """Test Kafka applications against a cluster with faults, simulate clusters, and show
    the waits of requests and the fate of each record.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: after the program's name; by default those of the process.

    Returns:
        The exit status: 0, 2 for a mistake in the arguments, or the command's own.
    """
    process = OWN_PROCESS if arguments is None else None
    if arguments is None:
        arguments = sys.argv[1:]
    if not arguments and COMPLETION_VARIABLE not in os.environ:
        print(FIRST_STEPS)
        return 0
    command = next((word for word in arguments if not word.startswith("-")), "")
    try:
        status = program.main(
            list(arguments), prog_name="purgatory", standalone_mode=False, obj=process
        )
    except NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        return _print_error(_error_message(error, command), error.exit_code)
    except click.Abort:
        return _print_error("purgatory: aborted", 1)
    except ModuleNotFoundError as error:
        advice = missing_extra(command, error.name)
        if advice is None:
            raise
        return _print_error(advice, 2)
    return status if isinstance(status, int) else 0


def _error_message(error: click.ClickException, command: str) -> str:
    # Errors that a command raises after parsing have no context.
    context = getattr(error, "ctx", None)
    name = f"purgatory {command}" if context is None else context.command_path
    text = " ".join(error.format_message().split()).rstrip(".")
    return f"{name}: {text} (see {name} --help)"


def _print_error(message: str, status: int) -> int:
    print(message, file=sys.stderr)
    return status
