"""Compares ours with the recordings of a real Kafka, and updates the table.

    python -m tests.recorded.judge                      # all programs
    python -m tests.recorded.judge fetch --show 20      # those of a file, 20 differences each
    python -m tests.recorded.judge --update             # write unmended.toml anew

The suite does the same: tests/world/recorded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from tests.recorded.comparison import Difference, fields_of
from tests.recorded.programs.registry import PROGRAMS
from tests.recorded.recordings import NEWEST, has_recording, read_recording
from tests.recorded.replay import differences_from, replay_named
from tests.recorded.table import MEANT_FILE, entries_of, judge, read_entries, write_unmended


@click.command()
@click.argument("starts", nargs=-1)
@click.option("--show", default=10, help="The most differences that are shown of a program.")
@click.option("--update", is_flag=True, help="Write the differences that aren't meant.")
def main(starts: Sequence[str], show: int, update: bool) -> None:
    """Replay programs, those whose names begin so."""
    if update and starts:
        raise click.UsageError("--update needs all programs")
    unmended: list[tuple[str, Difference]] = []
    fields = 0
    for name in PROGRAMS:
        if not name.startswith(tuple(starts) or "") or not has_recording(NEWEST, name):
            continue
        began_s = time.process_time()
        steps = replay_named(name)
        differences = differences_from(name, steps)
        took_s = time.process_time() - began_s
        verdict = judge(differences, entries_of(name))
        recorded = read_recording(NEWEST, name)
        fields += sum(fields_of(step.answer) for step in recorded)
        shown = f"{len(verdict.unexplained)} without an entry, {len(verdict.unused)} unused"
        counts = f"{len(recorded)} steps, {len(differences)} differences"
        click.echo(f"{name}: {counts}, {shown}, {took_s:.1f} s")
        for line in str(verdict).splitlines()[:show]:
            click.echo(f"    {line}")
        meant = [entry for entry in read_entries(MEANT_FILE) if name in entry.programs]
        unmended += [
            (name, one) for one in differences if not any(entry.explains(one) for entry in meant)
        ]
    click.echo(f"{fields} fields, {len(unmended)} differences that aren't meant")
    if update:
        write_unmended(unmended)


if __name__ == "__main__":
    main()
