"""One row with one seed and the longest delay of its acts, and what it breaks.

With a word behind these, its brokers are some milliseconds behind.

python -m tests.world.run_row none/old/plain/pause/memory/unchanged/none/none/none 17 15 realistic
"""

from __future__ import annotations

import logging
import sys

import structlog

from tests.world.invariants import broken_invariants
from tests.world.row_audit import audit_rows
from tests.world.row_world import run_row
from tests.world.rows import parse_row


def main() -> int:
    """Run the row of the arguments; return 1 if it breaks an invariant."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    name, seed, delay_s, *realistic = sys.argv[1:]
    history = run_row(parse_row(name), int(seed), float(delay_s), bool(realistic))
    audit_rows({name: history})
    broken = broken_invariants(history)
    print(*broken, sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
