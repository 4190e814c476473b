"""The audit of order and duplicates: the contents of the logs against their promises.

The audit compares what producers sent with what consumers read, and judges each anomaly as a
violation, permitted by the configuration, or indeterminate (`docs/audit.md`).

Partitioning. No task gets more than a bounded piece of a hot partition, producer, reader or key,
and no window sees a whole one:

=============================  ==================================================================
what                           where it is looked at
=============================  ==================================================================
values: attempts and places    (run, value)
order and gaps of a producer   (run, producer, range of sequence numbers), stitched by one row
                               per range and partition
single offsets                 (run, topic, partition, offset), and the consumer group
dense ranks                    (run, topic, partition, range of offsets), added up by range
order of polls                 (run, group, consumer, topic, partition, range of polls), stitched
                               by the last poll before each range
order of a key's versions      (run, group, topic, key, range of time), stitched by the highest
                               version before each range
writers                        (run, topic, partition), over one row per producer
transactions                   (run, transaction); reads of them by (run, group, topic,
                               partition, offset)
epochs                         (run, transactional id), over one row per epoch
witnesses                      (run, anomaly), over the first N of each task
=============================  ==================================================================

The only joins without a shuffle of both sides are broadcasts of small tables: settings of
groups, one row per partition, or per partition and group, one per epoch of a transactional id, the
chosen witnesses.
"""

from __future__ import annotations

from purgatory.pipeline.jobs.audit.anomalies import ANOMALIES, EXPECTATIONS
from purgatory.pipeline.jobs.audit.client_settings import (
    Configuration,
    ConsumerSettings,
    ProducerSettings,
    RunConfiguration,
)

__all__ = [
    "ANOMALIES",
    "EXPECTATIONS",
    "Configuration",
    "ConsumerSettings",
    "ProducerSettings",
    "RunConfiguration",
]
