"""The command ``purgatory``: its subcommands, and how it fails.

A mistake in what was typed is one line on standard error and exit status 2. A traceback is left to
defects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from purgatory import __version__
from purgatory.cli.analyze_command import analyze
from purgatory.cli.apply_command import apply
from purgatory.cli.audit_command import audit
from purgatory.cli.capture_command import capture
from purgatory.cli.cluster_command import cluster
from purgatory.cli.extras import missing_extra
from purgatory.cli.fault_command import fault
from purgatory.cli.occupancy_command import occupancy
from purgatory.cli.prepare_command import prepare
from purgatory.cli.simulate_command import scenarios, simulate
from purgatory.cli.stream_command import stream
from purgatory.cli.sweep_command import sweep
from purgatory.cli.waits_command import waits
from purgatory.cli.wheel_command import wheel

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
COMMANDS: dict[str, Callable[..., object]] = {
    "wheel": wheel,
    "simulate": simulate,
    "scenarios": scenarios,
    "analyze": analyze,
    "waits": waits,
    "occupancy": occupancy,
    "audit": audit,
    "sweep": sweep,
    "cluster": cluster,
    "stream": stream,
    "apply": apply,
    "capture": capture,
    "prepare": prepare,
}
for name, function in COMMANDS.items():
    app.command(name)(function)
app.add_typer(fault, name="fault")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"purgatory {__version__}")
        raise typer.Exit


@app.callback()
def purgatory(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """See ``app``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: what follows the program's name; those of the process by default.

    Returns:
        The exit status: 0, 2 for a mistake in the arguments, or what the command chose.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    command = next((word for word in arguments if not word.startswith("-")), "")
    try:
        status = app(list(arguments), prog_name="purgatory", standalone_mode=False)
    except typer.TyperException as error:
        # Without arguments the help was printed, and there is nothing to add.
        message = _described(error, command) if error.format_message() else ""
        return _fail(message, error.exit_code)
    except typer.Abort:
        return _fail("purgatory: aborted", 1)
    except ModuleNotFoundError as error:
        advice = missing_extra(command, error.name)
        if advice is None:
            raise
        return _fail(advice, 2)
    return status if isinstance(status, int) else 0


def _described(error: typer.TyperException, command: str) -> str:
    # It knows its command, but for what a command raises when all was parsed.
    context = getattr(error, "ctx", None)
    program = f"purgatory {command}" if context is None else context.command_path
    text = " ".join(error.format_message().split()).rstrip(".")
    return f"{program}: {text} (see {program} --help)"


def _fail(message: str, status: int) -> int:
    if message:
        print(message, file=sys.stderr)
    return status
