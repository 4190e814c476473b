"""Raises an exception before given instructions of the library, on the calling thread.

On Python 3.11 by ``sys.settrace``; from 3.12 on, where that may crash the interpreter, by
``sys.monitoring``. Only instructions in the library's own files are counted: ``timer/*.py``,
``purgatory/core/*.py`` and those that a test adds.

On 3.11 the interpreter removes a trace function that raises. The profile function, called at the
next call or return, restores it: a second interrupt is possible everywhere but in the few
instructions up to there.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import timer
from purgatory import core
from tests.proofs.interrupts.instructions import Place, marks, place_of

LIBRARY = tuple(str(Path(str(package.__file__)).parent) for package in (timer, core))


class Tracer:
    """Counts instructions, and raises before those that are due.

    Args:
        error: makes what is raised.
        numbers: before which instructions, counted from 1 on, ascending.
        where: the files that count, and the folders whose files do, without their subfolders.
    """

    def __init__(
        self,
        error: Callable[[], BaseException],
        numbers: Collection[int],
        where: Collection[str] = LIBRARY,
    ) -> None:
        self.error = error
        self.due = sorted(numbers, reverse=True)
        self.where = where
        self.count = 0
        self.raised: list[Place] = []

    def before(self, code: CodeType, offset: int) -> None:
        """Count the instruction, and raise if its turn has come."""
        if offset in marks(code):
            return
        self.count += 1
        if self.due and self.count >= self.due[-1]:
            self.due.pop()
            self.raised.append(place_of(code, offset))
            raise self.error()

    def counts(self, code: CodeType) -> bool:
        """Whether the instructions of ``code`` count."""
        return _is_in(code.co_filename, self.where)

    if sys.version_info >= (3, 12):

        @contextmanager
        def tracing(self) -> Iterator[None]:
            """Count and raise in the body, on this thread."""
            thread = threading.get_ident()

            def before(code: CodeType, offset: int) -> None:
                if threading.get_ident() == thread and self.counts(code):
                    self.before(code, offset)

            monitoring = sys.monitoring
            event = monitoring.events.INSTRUCTION
            _watch_all_code(self.where)
            monitoring.register_callback(_TOOL, event, before)
            try:
                yield
            finally:
                monitoring.register_callback(_TOOL, event, None)

    else:

        @contextmanager
        def tracing(self) -> Iterator[None]:
            """Count and raise in the body, on this thread."""
            before = sys.gettrace(), sys.getprofile()
            if self.due and len(self.due) > 1:
                sys.setprofile(self._trace_again)
            sys.settrace(self._trace)
            try:
                yield
            finally:
                sys.setprofile(before[1])  # first: it would put the trace function back
                sys.settrace(before[0])

        def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
            if event == "opcode":
                self.before(frame.f_code, frame.f_lasti)
            elif event == "call":
                if not self.counts(frame.f_code):
                    return None
                frame.f_trace_opcodes = True
                frame.f_trace_lines = False
            return self._trace

        def _trace_again(self, frame: FrameType, event: str, arg: Any) -> None:
            if not self.raised or sys.gettrace() is not None or not self.due:
                return
            upward: FrameType | None = frame
            while upward is not None:
                if self.counts(upward.f_code):
                    upward.f_trace = self._trace
                    upward.f_trace_opcodes = True
                    upward.f_trace_lines = False
                upward = upward.f_back
            sys.settrace(self._trace)


def _is_in(file: str, where: Collection[str]) -> bool:
    return file in where or _folder(file) in where


@cache
def _folder(file: str) -> str:
    return str(Path(file).parent)


if sys.version_info >= (3, 12):
    _TOOL = 3
    # By identity: two copies of a module, such as those that other tests load, have equal code.
    _watched: dict[int, CodeType] = {}

    def _watch_all_code(where: Collection[str]) -> None:
        """Have the interpreter report each instruction of the library's functions."""
        monitoring = sys.monitoring
        if monitoring.get_tool(_TOOL) is None:
            monitoring.use_tool_id(_TOOL, "interrupts")
        _watch_once(tuple(sorted(sys.modules)), tuple(where))

    @cache
    def _watch_once(modules: tuple[str, ...], where: tuple[str, ...]) -> None:
        """The same, once for these modules: other tests load many copies of the library."""
        for identity, code in _code_of(where).items():
            if identity not in _watched:
                sys.monitoring.set_local_events(_TOOL, code, sys.monitoring.events.INSTRUCTION)
                _watched[identity] = code

    def _code_of(where: tuple[str, ...]) -> dict[int, CodeType]:
        """Return the code of all functions there, and of those within them."""
        is_frozen = gc.get_freeze_count() > 0
        gc.unfreeze()  # what is frozen would be missing
        functions = [found for found in gc.get_objects() if isinstance(found, FunctionType)]
        if is_frozen:
            gc.freeze()
        left = [one.__code__ for one in functions if _is_in(one.__code__.co_filename, where)]
        found: dict[int, CodeType] = {}
        while left:
            code = left.pop()
            if id(code) not in found:
                found[id(code)] = code
                left += [const for const in code.co_consts if isinstance(const, CodeType)]
        return found
