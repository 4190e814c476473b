"""Which instructions of a function an interrupt may come before, and which none can.

CPython looks for signals where a function begins, where a loop jumps back and after calls, not
before every instruction. The tests interrupt before *every* one, which is stricter, but for those
listed by ``uncovered``: no code could be correct there, and CPython never looks there.
"""

from __future__ import annotations

import dis
from functools import cache
from types import CodeType
from typing import NamedTuple

LEAVING = "the body of a `with` has ended and `__exit__` is about to be called"
LEAVING_BY_AN_ERROR = "the body of a `with` has raised and `__exit__` is about to be called"


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
def uncovered(code: CodeType) -> dict[int, str]:
    """Return the offsets where no interrupt can come, each with the reason.

    They are found by what the compiler makes of a ``with``: it calls ``__exit__`` with three times
    None, on the way out by an error by an instruction of its own.
    """
    found: dict[int, str] = {}
    made = list(dis.get_instructions(code))
    names = [instruction.opname for instruction in made]
    for at, instruction in enumerate(made):
        if instruction.opname == "WITH_EXCEPT_START":
            _mark(found, made, at - (names[at - 1] == "PUSH_EXC_INFO"), at, LEAVING_BY_AN_ERROR)
        elif instruction.opname == "CALL" and instruction.arg == 2:
            first = at - 3 - (names[at - 1] == "PRECALL")
            if first >= 0 and all(
                one.opname == "LOAD_CONST" and one.argval is None for one in made[first : first + 3]
            ):
                _mark(found, made, first - (names[first - 1] == "SWAP"), at, LEAVING)
    return found


def _mark(
    found: dict[int, str], made: list[dis.Instruction], first: int, last: int, reason: str
) -> None:
    for instruction in made[first : last + 1]:
        found[instruction.offset] = reason
