"""A command with subcommands, whose help has them in order and whole."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import click

OWN_PROCESS = object()
"""The `obj` of a command's context in a process that was started for the command."""


class CommandGroup(click.Group):
    """A group whose help shows its commands in the order of definition, with whole sentences."""

    def panels(self) -> Mapping[str, Collection[str]]:
        """The names of the commands by the title of their section in the help."""
        return {"Commands": self.commands}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in self.panels().values() for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in self.panels().items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            shown = [(name, one) for name, one in commands if one is not None and not one.hidden]
            with formatter.section(title):
                formatter.write_dl([(name, _summary(one)) for name, one in shown])


def _summary(command: click.Command) -> str:
    """The first paragraph of a command's help."""
    text = str(command.help or "").partition("\n\n")[0]
    return " ".join(text.replace("`", "").split())
