"""How a job on traces runs, whichever engine does it."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict


class RunningAnywhere(TypedDict, total=False):
    """What all engines take.

    `overwrite`: replace earlier results. `progress`: show on standard error how far it is; None
    does so on a terminal only. `mapping`: the file that says where columns of other names are.
    `strict`: stop at a bad row or file; otherwise it is set aside and counted. `memory`: how many
    bytes DuckDB may take before it uses the disk, or Spark's driver gets; None: a share of what
    the machine or the container has, or as Spark is set up.
    """

    overwrite: bool
    progress: bool | None
    mapping: Path | None
    strict: bool
    memory: int | None
