"""The instructions of a function, before each of which an interrupt may come.

CPython looks for signals where a function begins, where a loop jumps back and after calls, not
before every instruction, and where exactly is another matter in each version. The tests are
stricter: they interrupt before *every* one.
"""

from __future__ import annotations

import dis
import sys
from functools import cache
from types import CodeType
from typing import NamedTuple


class Place(NamedTuple):
    """An instruction of the library."""

    file: str
    function: str
    line: int
    offset: int
    instruction: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}, before {self.instruction} @{self.offset}"


@cache
def _instructions(code: CodeType) -> dict[int, tuple[str, int]]:
    """Return name and line of each instruction, by its offset."""
    found: dict[int, tuple[str, int]] = {}
    line = code.co_firstlineno
    lines = {start: line for start, _, line in code.co_lines() if line is not None}
    for instruction in dis.get_instructions(code):
        line = lines.get(instruction.offset, line)
        found[instruction.offset] = (f"{instruction.opname} {instruction.argrepr}".strip(), line)
    return found


def place_of(code: CodeType, offset: int) -> Place:
    """Return where ``offset`` is, for people."""
    instruction, line = _instructions(code).get(offset, ("?", code.co_firstlineno))
    file = "/".join(code.co_filename.replace("\\", "/").split("/")[-2:])
    return Place(file, code.co_qualname, line, offset, instruction)


@cache
def marks(code: CodeType) -> frozenset[int]:
    """Return the offsets of marks, which do nothing, and before which nothing can come in between.

    From 3.14 on, one after each conditional jump tells ``sys.monitoring`` of its branch. The
    compiler leaves them out of the ``try`` around.
    """
    made = dis.get_instructions(code)
    return frozenset(one.offset for one in made if one.opname == "NOT_TAKEN")


def code_of(source: str) -> list[CodeType]:
    """Return the code of a module and of all functions in it."""
    found = [compile(source, "source", "exec")]
    for code in found:  # which grows meanwhile
        found += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found


def jumps_left_out(code: CodeType) -> list[Place]:
    """Return the loops' backward jumps that an enclosing ``try`` does not cover.

    CPython looks for signals there. From 3.12 on the compiler leaves some of them out of the
    ``try``: those that it makes of a loop's condition, or of an ``if`` at a loop's end. Before 3.13
    what a handler raises there counts as raised by the instruction before the jump's target.
    """
    tries = _exception_table(code)
    found = []
    for one in dis.get_instructions(code):
        if one.opname.startswith("JUMP_BACKWARD") and "NO_INTERRUPT" not in one.opname:
            raises_at = one.offset if sys.version_info >= (3, 13) else one.argval - 2
            around_the_loop = {target for first, end, target in tries if first <= one.argval < end}
            around_the_jump = {target for first, end, target in tries if first <= raises_at < end}
            if around_the_loop - around_the_jump:
                found.append(place_of(code, one.offset))
    return found


def _exception_table(code: CodeType) -> list[tuple[int, int, int]]:
    """Return first offset, end and handler of what each ``try`` covers.

    The format: Objects/exception_handling_notes.txt of CPython. Each number is written in groups of
    six bits, the most significant first; 64 marks that more follow, 128 that an entry begins.
    """
    table = iter(code.co_exceptiontable)

    def number(first: int) -> int:
        value = first & 63
        while first & 64:
            first = next(table)
            value = value << 6 | first & 63
        return value

    entries = []
    for byte in table:
        start, length, target = number(byte) * 2, number(next(table)) * 2, number(next(table)) * 2
        number(next(table))  # depth and whether the offset is pushed: of no concern here
        entries.append((start, start + length, target))
    return entries
