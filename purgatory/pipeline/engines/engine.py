"""Which engine does a job: Spark, or DuckDB where Spark can't."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypedDict

from purgatory.pipeline.errors import SessionEndedError, SessionError

Engine = Literal["spark", "duckdb"]


def chosen_engine(command: str, asked: Engine | None) -> Engine:
    """The engine that was asked for; else Spark, or DuckDB where Spark or Java is missing.

    The latter is said in a line on standard error.

    Args:
        command: who asks, for that line.
        asked: None leaves the choice.
    """
    if asked is not None:
        return asked
    lacking = _lacking()
    if lacking is None or find_spec("duckdb") is None:
        return "spark"
    print(
        f"purgatory {command}: {lacking}, so DuckDB does it, in this process. Spark would bring "
        "clusters, and traces of any size.",
        file=sys.stderr,
    )
    return "duckdb"


def _lacking() -> str | None:
    """What Spark lacks here, or None."""
    if find_spec("pyspark") is None:
        return "PySpark is not installed"
    from purgatory.pipeline.engines.spark.java import find_java_home

    try:
        find_java_home(os.environ)
    except SessionEndedError:
        return None  # it is there: the start of Spark tells what became of it
    except SessionError:
        return "Spark finds no Java 17 or later"
    return None


# How a job on traces runs, whichever engine does it.


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
