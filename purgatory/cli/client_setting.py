"""The option `--client`: settings of the Kafka client, as its library names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

Client = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="A setting of the Kafka client, as security.protocol=SSL; may be given again.",
        show_default=False,
    ),
]
"""The option; None when it is not given."""


def client_settings(texts: Sequence[str] | None) -> dict[str, str]:
    """Return what was given, by name. O(texts).

    Raises:
        typer.BadParameter: one is no NAME=VALUE, or takes a function and not a text.
    """
    return dict(_setting(text) for text in texts or ())


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{text!r}: write NAME=VALUE", param_hint="--client")
    if name.endswith("_cb") or name == "logger":
        raise typer.BadParameter(
            f"{text!r}: {name} takes a function of a program; it can't be given here",
            param_hint="--client",
        )
    return name, value
