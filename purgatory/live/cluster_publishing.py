"""Publishing from a cluster into itself: what its trace takes down, into topics of its own.

Ground rules: everything happens on the event loop's thread, but for the publisher's own thread.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from purgatory.cluster import Cluster, ClusterTrace
from purgatory.live.published_topics import PARTITIONS
from purgatory.live.row_publisher import RowPublisher

_RELEASE_EVERY_S = 1.0


@asynccontextmanager
async def publishing(
    trace: ClusterTrace, publisher: RowPublisher, cluster: Cluster
) -> AsyncIterator[None]:
    """Publish to topics of the cluster itself, until the block ends; then say if rows were lost."""
    make_published_topics(cluster, publisher.topics.values())
    publisher.start(cluster.bootstrap_servers)
    loop = asyncio.get_running_loop()
    releasing = loop.create_task(_release(trace))
    try:
        yield
    finally:
        releasing.cancel()
        trace.close()
        # The cluster must go on meanwhile: it is what takes the last rows.
        published = await loop.run_in_executor(None, publisher.close)
        if published.failed or published.dropped:
            print(
                f"purgatory cluster: of the published rows {published.failed:,} could not be "
                f"delivered, and {published.dropped:,} were dropped for want of room",
                file=sys.stderr,
            )


def make_published_topics(cluster: Cluster, names: Iterable[str]) -> None:
    """Make the topics for published rows that are not there yet.

    They have one replica: else each row's replication would be an operation to be published.
    """
    for name in names:
        if name not in cluster.controller.topics:
            settings = {"min.insync.replicas": "1"}
            cluster.controller.create_topic(name, PARTITIONS, 1, settings)


async def _release(trace: ClusterTrace) -> None:
    while True:
        await asyncio.sleep(_RELEASE_EVERY_S)
        trace.release()
