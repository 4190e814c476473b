"""The problems of a document of settings, a line for each, so that all can be corrected at once:
where it is, what stands there, what would be right.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

T = TypeVar("T")

ABSENT = object()
"""The value of a problem of a missing setting."""

_LONGEST_SHOWN = 80


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Args:
        key: where, as in "topics[0].partitions".
        value: what stands there, or ABSENT.
        right: what would be right.
    """

    key: str
    value: Any
    right: str

    def text(self, source: str) -> str:
        """Return the line; ``source`` is what the document is called."""
        shown = "" if self.value is ABSENT else f" = {show(self.value)}"
        return f"{source}: {self.key}{shown}: {self.right}"


def show(value: Any) -> str:
    """Return a value as TOML has it, shortened if it is long."""
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    if isinstance(value, bool):
        text = str(value).lower()
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


def key_text(location: Sequence[int | str]) -> str:
    """Return the place of a value in a document, from its keys and numbers."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the document"


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Ask about the known name that is most like an unknown one, in any case; or "".

    A sentence, with a space behind it.
    """
    by_lower_case = {one.lower(): one for one in known}
    close = difflib.get_close_matches(str(name).lower(), by_lower_case, n=1)
    return f'did you mean "{by_lower_case[close[0]]}"? ' if close else ""


def hint_at_arguments(config: type | None = None) -> Callable[[type[T]], type[T]]:
    """Have the TypeError for an unknown argument of a class say which one may have been meant.

    Args:
        config: the class of its argument ``config``, whose arguments are pointed at, too.
    """

    def with_hints(cls: type[T]) -> type[T]:
        init: Callable[..., None] = cls.__init__
        known = list(signature(init).parameters)[1:]
        configured = [] if config is None else list(signature(config).parameters)

        @wraps(init)
        def checked(self: object, *args: Any, **keywords: Any) -> None:
            __tracebackhide__ = True  # for pytest
            for name in sorted(keywords.keys() - set(known)):
                right = known_names(name, known)
                if config is not None and name in configured:
                    right = f"give config={config.__name__}({name}=...)"
                raise TypeError(f"{cls.__name__} has no argument {name!r}; {right}")
            init(self, *args, **keywords)

        cls.__init__ = checked  # type: ignore[method-assign]
        return cls

    return with_hints


def no_such_attribute(owner: object, name: str) -> AttributeError:
    """Return the error for an unknown attribute; it says which one may have been meant."""
    hint = did_you_mean(name, [one for one in dir(owner) if not one.startswith("_")])
    text = f"{type(owner).__name__!r} object has no attribute {name!r}; {hint}"
    # Without the owner, Python adds no hint of its own.
    return AttributeError(text.removesuffix("; ").strip(), name=name, obj=None)


def known_names(name: object, known: Iterable[str]) -> str:
    """Say which name may have been meant; where none is like it, which there are."""
    names = list(known)
    return did_you_mean(name, names).strip() or f"there are {', '.join(names)}"


def no_such_key(name: str, keys: Iterable[str]) -> str:
    """Say which keys there are, and which one may have been meant."""
    known = sorted(keys)
    hint = did_you_mean(name, known)
    return f"there is no such key; {hint}the keys here are {', '.join(known)}"


def right_value(item: Mapping[str, Any]) -> str:
    """Say what would be right where pydantic found an error."""
    message = str(item["msg"])
    if item["type"] == "missing":
        return "this key is missing and must be given"
    for prefix in ("Value error, ", "Input should be "):
        if message.startswith(prefix):
            message = message.removeprefix(prefix)
            return message if prefix.startswith("Value") else f"must be {message}"
    return message
