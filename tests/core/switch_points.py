"""Where a scheduled thread may be switched in the core. It has a switch point before

* each lock operation (in ``cooperative_locks`` themselves),
* each load and store of a flag that threads share (``FLAGS``), and each step of a dict or deque
  that is not guarded by a lock,
* each access to what a lock or a turn guards (``GUARDED``), if that is not held.

On Python 3.11 by ``sys.settrace``; from 3.12 on, where that may crash the interpreter, by
``sys.monitoring``.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import timer
from purgatory import core
from tests.core.scheduler import Active, point, point_if_unguarded

FLAGS = frozenset(
    {
        "is_closed",
        "_op_books",
        "_op_check_due",
        "_op_expiry_due",
        "_op_keys",
        "_op_listeners",
        "_op_outcome",
        "_op_retry",
        "_op_stage",
        "_op_thresholds",
        "_op_verdict",
        "_timer_entry",
        "home",
        "number",
        "task",
    }
)
GUARDED = frozenset(
    {
        "by_key",
        "by_number",
        "checks",
        "entries",
        "missed_wakeups",
        "numbers",
        "numbers_by_key",
        "pending",
        "settling",
    }
)
ATOMIC_METHODS = frozenset({"append", "get", "pop", "popleft", "setdefault"})
LOCKED_FILES = frozenset(
    {
        "books.py",
        "delayed_operation.py",
        "delayed_operation_purgatory.py",
        "threshold_watchers.py",
        "watchers.py",
    }
)
"""Where dicts are changed under a lock; elsewhere each step of a dict is a step of its own."""

ROOTS = [Path(module.__file__ or "").parent for module in (core, timer)]
FILES = frozenset(str(path) for root in ROOTS for path in root.glob("*.py"))


def _switch_at(code: CodeType, offset: int) -> None:
    always, unguarded = _switch_offsets(code)
    if offset in always:
        point()
    elif offset in unguarded:
        point_if_unguarded()


if sys.version_info >= (3, 12):
    _TOOL = 4

    def watch(code: CodeType) -> None:
        """Have ``code``, of a module of the core, and all functions in it stop at their points."""
        monitoring = sys.monitoring
        if monitoring.get_tool(_TOOL) is None:
            monitoring.use_tool_id(_TOOL, "switch points")
            monitoring.register_callback(_TOOL, monitoring.events.INSTRUCTION, _before)
        if code.co_filename in FILES:
            if any(_switch_offsets(code)):
                monitoring.set_local_events(_TOOL, code, monitoring.events.INSTRUCTION)
            for inner in code.co_consts:
                if isinstance(inner, CodeType):
                    watch(inner)

    def _before(code: CodeType, offset: int) -> object:
        if not any(offset in offsets for offsets in _switch_offsets(code)):
            return sys.monitoring.DISABLE
        if Active.scheduler is not None:
            _switch_at(code, offset)
        return None

    def trace_core() -> None:
        """Have this thread stop at the switch points of the core: as all threads do."""

else:
    Trace = Callable[[FrameType, str, Any], Any]
    _local_traces: dict[CodeType, Trace | None] = {}

    def watch(code: CodeType) -> None:
        """Have ``code`` stop at its points: as all does on a thread that is traced."""

    def trace_core() -> None:
        """Have this thread stop at the switch points of the core."""
        sys.settrace(_trace_call)

    def _trace_call(frame: FrameType, event: str, arg: Any) -> Trace | None:
        code = frame.f_code
        try:
            local = _local_traces[code]
        except KeyError:
            local = _local_traces[code] = _local_trace(code)
        if local is not None:
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        return local

    def _local_trace(code: CodeType) -> Trace | None:
        if code.co_filename not in FILES or not any(_switch_offsets(code)):
            return None

        def trace(frame: FrameType, event: str, arg: Any) -> Trace:
            if event == "opcode":
                _switch_at(code, frame.f_lasti)
            return trace

        return trace


@cache
def _switch_offsets(code: CodeType) -> tuple[frozenset[int], frozenset[int]]:
    """Return where the code touches what threads share: always, and unless it is guarded."""
    always: set[int] = set()
    unguarded: set[int] = set()
    of_dicts = unguarded if Path(code.co_filename).name in LOCKED_FILES else always
    methods: set[tuple[int | None, int | None]] = set()
    for instruction in dis.get_instructions(code):
        operation, name = instruction.opname, instruction.argval
        positions = instruction.positions
        start = (positions.lineno, positions.col_offset) if positions else (None, None)
        if operation in ("LOAD_ATTR", "STORE_ATTR", "DELETE_ATTR", "LOAD_METHOD"):
            if name in FLAGS:
                always.add(instruction.offset)
            elif name in GUARDED:
                unguarded.add(instruction.offset)
            elif name in ATOMIC_METHODS:
                methods.add(start)
        elif operation in ("STORE_SUBSCR", "DELETE_SUBSCR") or (
            operation == "CALL" and start in methods
        ):
            of_dicts.add(instruction.offset)
    return frozenset(always), frozenset(unguarded)
