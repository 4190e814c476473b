"""The part that is built where a C compiler is: see ``purgatory.kafka.log.record_scan``."""
