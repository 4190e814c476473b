"""The options of ``purgatory`` that have a shell complete its commands and options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

COMPLETION_VARIABLE = "_PURGATORY_COMPLETE"
"""The environment variable that a shell sets when it asks for completions."""

_FILES = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshrc",
    "fish": "~/.config/fish/completions/purgatory.fish",
}
"""The file by shell that a completion is installed into."""


def completion_options(command: Any) -> Any:
    """The options that show and install a completion."""
    show = click.option(
        "--show-completion",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show,
        help="Show completion for the current shell, to copy it or customize the installation.",
    )
    install = click.option(
        "--install-completion",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_install,
        help="Install completion for the current shell.",
    )
    return install(show(command))


def _show(context: click.Context, _parameter: click.Parameter, is_given: bool) -> None:
    if is_given:
        click.echo(_source(_shell()))
        context.exit()


def _install(context: click.Context, _parameter: click.Parameter, is_given: bool) -> None:
    if not is_given:
        return
    shell = _shell()
    file = Path(_FILES[shell]).expanduser()
    present = file.read_text() if file.exists() else ""
    line = f"{COMPLETION_VARIABLE}={shell}_source purgatory"
    line = f"{line} | source" if shell == "fish" else f'eval "$({line})"'
    if line not in present:
        file.parent.mkdir(parents=True, exist_ok=True)
        separator = "" if present.endswith("\n") or not present else "\n"
        file.write_text(f"{present}{separator}{line}\n")
    click.echo(f"{shell} completion installed in {file}; it takes effect in the next shell")
    context.exit()


def _shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in _FILES:
        raise click.UsageError(f"completion is for {', '.join(_FILES)}; SHELL is {name!r}")
    return name


def _source(shell: str) -> str:
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None, shell
    return completion(click.Command("purgatory"), {}, "purgatory", COMPLETION_VARIABLE).source()
