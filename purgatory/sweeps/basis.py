"""The basis of a sweep's answers, in words: scenarios that were judged, and that were left out."""

from __future__ import annotations

from dataclasses import dataclass

from purgatory.pipeline.result_rows import counted


@dataclass(frozen=True)
class SweepBasis:
    """The counts of a whole sweep.

    Args:
        scenarios: all of them.
        failed: those that failed, and are in no mean.
        operations: of the purgatories, in the others.
        records: of the producers, in the others.
    """

    scenarios: int
    failed: int
    operations: int
    records: int

    @property
    def nothing_judged(self) -> bool:
        """Whether the answers rest on no operation and no record at all."""
        return not (self.operations or self.records)

    def __str__(self) -> str:
        """The basis in a line."""
        left_out = f"{counted(self.failed, 'scenario')} (failed)"
        if self.failed == self.scenarios:
            return f"nothing was judged: {left_out} left out"
        done = self.scenarios - self.failed
        if self.nothing_judged:
            text = f"nothing was judged: no operations or records in {counted(done, 'scenario')}"
        else:
            text = (
                f"judged: {done:,} of {counted(self.scenarios, 'scenario')}, "
                f"{counted(self.operations, 'operation')}, {counted(self.records, 'record')}"
            )
        return f"{text}; left out: {left_out}" if self.failed else text
