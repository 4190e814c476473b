"""The needs of an import: packages of this project under its names, and the libraries of an extra.

The package index has other projects of both names. Installed beside this one they lie in the same
folders, or come before it, and the error then says nothing of that. Nor does an import that fails
for want of an optional library say which extra brings it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import timer


def check_timer() -> None:
    """Raise ImportError if ``timer`` is somebody else's."""
    if not hasattr(timer, "SystemTimer"):
        raise ImportError(_advice("timer"))


def check_purgatory() -> None:
    """Raise ImportError if ``purgatory``, or ``timer``, is somebody else's."""
    check_timer()
    if "DelayedOperationPurgatory" not in getattr(sys.modules["purgatory"], "__all__", ()):
        raise ImportError(_advice("purgatory"))


@contextmanager
def needs_extra(package: str, extra: str) -> Iterator[None]:
    """Have imports of ``package`` that don't find a library name the extra that brings it.

    Raises:
        ModuleNotFoundError: of the same module, with what to install.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise _named(package, extra, error) from None


def raises_when_called(name: str, extra: str, error: ModuleNotFoundError) -> Callable[..., None]:
    """Return what stands for a function whose module ``error`` kept from being imported."""
    error = _named(name, extra, error)

    def needs_extra(*_arguments: object, **_options: object) -> None:
        raise error

    needs_extra.__doc__ = str(error)
    return needs_extra


def _named(needing: str, extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    ours = (error.name or "").partition(".")[0] in {"purgatory", "timer", ""}
    if ours or "kafka-purgatory[" in str(error):  # a defect, or named by a package inside this one
        return error
    return ModuleNotFoundError(
        f"{needing} needs the {extra.replace(',', ' and ')} extra ({error.name} is missing): "
        f"pip install 'kafka-purgatory[{extra}]'",
        name=error.name,
    )


def _advice(name: str) -> str:
    return (
        f"the package {name!r} in {sys.modules[name].__file__} is not that of kafka-purgatory: "
        f"another project of this name is installed over it or beside it. One environment can't "
        f"have both: pip uninstall {name}, then install kafka-purgatory again with "
        "pip install --force-reinstall --no-deps"
    )


check_timer()
