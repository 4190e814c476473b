"""A stream of quixstreams that adds up numbers by key, exactly once; it may die in the middle.

The stream has an environment of its own, since quixstreams requires an older confluent-kafka.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from quixstreams import Application  # type: ignore[import-not-found]


def main(servers: str, source: str, result: str, folder: str, dies_after: int) -> None:
    """Read until nothing comes for a while; die as by SIGKILL after so many records, if not 0."""
    app = Application(
        broker_address=servers,
        consumer_group="sums",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=0.2,
        state_dir=folder,
        consumer_extra_config={"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000},
        # The successor of a dead process waits until its transaction has timed out.
        producer_extra_config={"transaction.timeout.ms": 5_000},
        loglevel="WARNING",
    )
    seen = 0

    def add_up(value: dict[str, int], state: Any) -> dict[str, int]:
        nonlocal seen
        seen += 1
        if seen == dies_after:
            os._exit(9)
        total = state.get("total", 0) + value["number"]
        state.set("total", total)
        return {"number": value["number"], "total": total}

    stream = app.dataframe(app.topic(source, value_deserializer="json"))
    stream.apply(add_up, stateful=True).to_topic(app.topic(result, value_serializer="json"))
    app.run(timeout=30)


if __name__ == "__main__":
    bootstrap, read, written, state_folder, records = sys.argv[1:]
    main(bootstrap, read, written, state_folder, int(records))
