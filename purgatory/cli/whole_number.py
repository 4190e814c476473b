"""Whole numbers on the command line, with errors that say what was given and what is right."""

from __future__ import annotations

from collections.abc import Callable

import typer


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return a parser for an option: a whole number from ``least`` to ``most``."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            message = f"{text.strip()!r} is not a whole number from {least} to {most}"
            raise typer.BadParameter(message)
        return number

    return parse
