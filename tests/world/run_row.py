"""One row with one seed, and what it breaks.

python -m tests.world.run_row none/old/plain/pause/memory/unchanged/none/none 17
"""

from __future__ import annotations

import logging
import sys

import structlog

from tests.world.invariants import broken_invariants
from tests.world.row_world import run_row
from tests.world.rows import parse_row


def main() -> int:
    """Run the row of the arguments; return 1 if it breaks an invariant."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    name, seed = sys.argv[1:]
    broken = broken_invariants(run_row(parse_row(name), int(seed)))
    print(*broken, sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
