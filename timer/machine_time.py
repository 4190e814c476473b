"""The machine's clocks: the functions of ``time``, under references of its own.

Freezegun replaces each reference to these functions that it finds in a module, and would stop the
timers of a program whose test's time it freezes. It does not know those of a second instance of the
module. A virtual world replaces their code in C, which both instances share. ``sleep`` is that of
the first instance, which gevent replaces.
"""

from __future__ import annotations

import time as _programs_time
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING

__all__ = ["time"]

if TYPE_CHECKING:
    import time
else:
    _spec = find_spec("time")
    time = module_from_spec(_spec)
    _spec.loader.exec_module(time)

    def _sleep(seconds):
        _programs_time.sleep(seconds)  # looked up now: gevent may have patched it since

    time.sleep = _sleep
