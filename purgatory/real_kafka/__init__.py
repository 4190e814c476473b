"""A real Kafka's brokers on this machine, with the cluster's faults."""

from purgatory.import_names import needs_extra

with needs_extra(__name__, "cluster"):
    from purgatory.real_kafka.cluster import RealKafka
    from purgatory.real_kafka.jars import KafkaFiles, find_kafka
    from purgatory.real_kafka.settings import OnlyOursError
    from purgatory.real_kafka.threaded_kafka import ThreadedRealKafka

__all__ = ["KafkaFiles", "OnlyOursError", "RealKafka", "ThreadedRealKafka", "find_kafka"]
