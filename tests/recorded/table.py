"""The table of differences: those that are meant, and those that are not yet mended.

It is strict both ways: a difference without an entry fails a program's test, and so does an entry
that no longer occurs. An entry names its steps; `v4..9` in a step's name stands for these versions,
and `*` for anything, in meant entries.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from tests.recorded.comparison import Difference

MEANT_FILE = Path(__file__).parent / "meant.toml"
UNMENDED_FILE = Path(__file__).parent / "unmended.toml"
UNKNOWN = "?"
"""The subject of an entry that `python -m tests.recorded.judge --update` has added."""

_VERSIONED = re.compile(r"^(\S+) v([\d.,]+)( .*)$")


class Entry:
    """A difference of some programs, in some of their steps.

    Args:
        programs: their names.
        steps: the names of the steps, folded or with stars.
        path: the field's path, in which stars may stand for anything.
        theirs: the value of a real Kafka, likewise.
        ours: ours.
        reason: why it is meant, or the subject of the defect.
    """

    def __init__(
        self,
        programs: Sequence[str],
        steps: Sequence[str],
        path: str,
        theirs: str,
        ours: str,
        reason: str,
    ) -> None:
        self.programs = programs
        self.steps = steps
        self.path = path
        self.theirs = theirs
        self.ours = ours
        self.reason = reason

    def __str__(self) -> str:
        return f"{', '.join(self.steps)} {self.path}: theirs {self.theirs}, ours {self.ours}"

    @cached_property
    def _names(self) -> Collection[str]:
        return {name for step in self.steps for name in unfold(step) if "*" not in name}

    @cached_property
    def _patterns(self) -> Sequence[re.Pattern[str]]:
        return [_pattern(name) for step in self.steps for name in unfold(step) if "*" in name]

    @cached_property
    def _values(self) -> Sequence[re.Pattern[str]]:
        return [_pattern(text) for text in (self.path, self.theirs, self.ours)]

    def explains(self, difference: Difference) -> bool:
        """Whether it is an entry for this difference."""
        step = difference.step
        if step not in self._names and not any(one.match(step) for one in self._patterns):
            return False
        return self.explains_elsewhere(difference)

    def explains_elsewhere(self, difference: Difference) -> bool:
        """Whether it would be an entry for this difference in one of its steps."""
        pairs = zip(self._values, difference[1:], strict=True)
        return all(one.match(text) for one, text in pairs)

    def unused_steps(self, differences: Iterable[Difference]) -> Sequence[str]:
        """Return its steps that are none of the differences that it explains."""
        seen = {one.step for one in differences if self.explains(one)}
        unused = [name for name in self._names if name not in seen]
        unused += [one.pattern for one in self._patterns if not any(map(one.match, seen))]
        return sorted(unused)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))) + r"\Z", re.DOTALL)


class Verdict(NamedTuple):
    """What a program's differences and the table say about each other.

    Args:
        unexplained: differences without an entry.
        unused: entries, with the steps in which they don't occur.
    """

    unexplained: Sequence[Difference]
    unused: Sequence[tuple[Entry, Sequence[str]]]

    def __str__(self) -> str:
        lines = [
            f"differs: {name} {path}: theirs {theirs}, ours {ours}"
            for name, path, theirs, ours in self.unexplained
        ]
        for entry, steps in self.unused:
            lines.append(f"no longer so: {entry} in {', '.join(steps)} ({entry.reason})")
        return "\n".join(lines)


def judge(differences: Sequence[Difference], entries: Sequence[Entry]) -> Verdict:
    """Compare a program's differences with its entries."""
    unexplained = [
        difference
        for difference in differences
        if not any(entry.explains(difference) for entry in entries)
    ]
    unused = [(entry, entry.unused_steps(differences)) for entry in entries]
    return Verdict(unexplained, [(entry, steps) for entry, steps in unused if steps])


# The files.


@cache
def read_entries(file: Path) -> Sequence[Entry]:
    """Return the entries of a file."""
    if not file.exists():
        return []
    rows = tomllib.loads(file.read_text()).get("difference", [])
    return [Entry(**row) for row in rows]


def entries_of(program: str) -> Sequence[Entry]:
    """Return a program's entries, meant or not yet mended."""
    both = (*read_entries(MEANT_FILE), *read_entries(UNMENDED_FILE))
    return [entry for entry in both if program in entry.programs]


def entries_of_all(start: str) -> Sequence[Entry]:
    """Return the entries of all programs whose names begin so."""
    both = (*read_entries(MEANT_FILE), *read_entries(UNMENDED_FILE))
    return [entry for entry in both if any(one.startswith(start) for one in entry.programs)]


def write_unmended(differences: Iterable[tuple[str, Difference]]) -> None:
    """Write the entries of all programs' differences that aren't meant.

    Entries keep their reasons; one of a new field has `UNKNOWN`, which a test refuses.
    """
    subjects: dict[tuple[str, ...], str] = {}
    for entry in read_entries(UNMENDED_FILE):
        key = (entry.programs[0], entry.path, entry.theirs, entry.ours)
        subjects |= {key[:length]: entry.reason for length in _ALIKE}
    steps: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for program, difference in differences:
        steps[program, *difference[1:]].append(difference.step)
    lines = [_HEAD]
    for key, names in steps.items():
        program, path, theirs, ours = key
        shown = ",\n    ".join(map(json.dumps, fold(names)))
        reason = next((subjects[key[:n]] for n in _ALIKE if key[:n] in subjects), UNKNOWN)
        lines.append(
            f"[[difference]]\nprograms = [{json.dumps(program)}]\nsteps = [\n    {shown},\n]\n"
            f"path = {json.dumps(path)}\ntheirs = {json.dumps(theirs)}\nours = {json.dumps(ours)}\n"
            f"reason = {json.dumps(reason)}\n"
        )
    UNMENDED_FILE.write_text("\n".join(lines))
    read_entries.cache_clear()


_HEAD = """\
# Differences from a real Kafka that are defects, and not yet mended. This file is written anew by
# `python -m tests.recorded.judge --update`; the reasons, which it keeps, name the defects.
"""


_ALIKE = (4, 3, 2)
"""A new entry has the reason of one that is equal in program, path, theirs and ours, or in less."""


# Names of steps.


def fold(names: Iterable[str]) -> list[str]:
    """Write the versions of equal steps as one name: ``Fetch v4..9,12 beyond the end``."""
    versions: dict[tuple[str, str], list[int]] = defaultdict(list)
    folded: dict[str, None] = {}
    for name in names:
        parts = _VERSIONED.match(name)
        if parts is None or not parts[2].isdigit():
            folded[name] = None
        else:
            versions[parts[1], parts[3]].append(int(parts[2]))
    for (api, rest), numbers in versions.items():
        folded[f"{api} v{','.join(_ranges(sorted(set(numbers))))}{rest}"] = None
    return list(folded)


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    first = numbers[0]
    for number, after in zip(numbers, [*numbers[1:], None], strict=True):
        if after != number + 1:
            yield f"{first}" if first == number else f"{first}..{number}"
            first = after or 0


def unfold(name: str) -> Iterator[str]:
    """Yield the names for which a folded one stands."""
    parts = _VERSIONED.match(name)
    if parts is None:
        yield name
        return
    for part in parts[2].split(","):
        first, _, last = part.partition("..")
        for version in range(int(first), int(last or first) + 1):
            yield f"{parts[1]} v{version}{parts[3]}"


# The document.


def render_meant() -> str:
    """Return the meant differences as a table of Markdown, a row for each reason and field."""
    rows = [
        f"| {', '.join(entry.programs)} | {_code(entry.path)} | {_code(entry.theirs)} | "
        f"{_code(entry.ours)} | {entry.reason} |"
        for entry in read_entries(MEANT_FILE)
    ]
    head = ["| programs | field | Kafka | ours | why |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def _code(text: str) -> str:
    return "any" if text == "*" else f"`{text}`".replace("|", r"\|")


if __name__ == "__main__":
    print(render_meant())
