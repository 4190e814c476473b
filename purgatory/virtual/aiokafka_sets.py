"""aiokafka's sets in a world: gone through in one order in all processes.

It goes through sets of topics, partitions and brokers, whose order each process draws anew. So its
modules find an ordered kind by the names ``set`` and ``frozenset`` while a world runs.

Ground rules: only the thread that entered a world touches it.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from purgatory.virtual.ordered_sets import OrderedFrozenSet, OrderedSet

_PACKAGE: Final = "aiokafka"
_NAMES: Final[dict[str, Any]] = {"set": OrderedSet, "frozenset": OrderedFrozenSet}


class OrderedSets:
    """Gives aiokafka's modules ordered sets, between `begin` and `end`."""

    def __init__(self) -> None:
        self._modules: dict[str, Any] = {}
        self._looked_at = 0

    def begin(self) -> None:
        """Begin, in the modules that are imported. Again: in those that came since."""
        if len(sys.modules) == self._looked_at:
            return
        self._looked_at = len(sys.modules)
        for name, module in list(sys.modules.items()):
            of_aiokafka = name == _PACKAGE or name.startswith(_PACKAGE + ".")
            if (
                of_aiokafka
                and name not in self._modules
                and not _NAMES.keys() & vars(module).keys()
            ):
                self._modules[name] = module
                vars(module).update(_NAMES)

    def end(self) -> None:
        """Let them have Python's again. Again: no effect."""
        for module in self._modules.values():
            for name in _NAMES:
                vars(module).pop(name, None)
        self._modules = {}
        self._looked_at = 0
