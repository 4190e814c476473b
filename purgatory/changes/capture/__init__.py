"""Captures a MariaDB's or MySQL's changes into a topic, each once and in order."""

from purgatory.changes.capture.address import SourceAddress, parse_source_address
from purgatory.changes.capture.captured_tables import TableFilter
from purgatory.changes.capture.errors import CaptureError, CaptureFaultError, ChangeRefusedError
from purgatory.changes.capture.kafka_settings import KafkaSettings
from purgatory.changes.capture.run import CaptureConfig, capture_changes

__all__ = [
    "CaptureConfig",
    "CaptureError",
    "CaptureFaultError",
    "ChangeRefusedError",
    "KafkaSettings",
    "SourceAddress",
    "TableFilter",
    "capture_changes",
    "parse_source_address",
]
