"""Captures a MariaDB's or MySQL's changes into a topic, each once and in order."""

from purgatory.cdc.capture.connector import CaptureConfig, capture_changes
from purgatory.cdc.capture.errors import CaptureError, TransientCaptureError, UnsupportedChangeError
from purgatory.cdc.capture.kafka import KafkaSettings
from purgatory.cdc.capture.source import SourceAddress, TableFilter, parse_source_address

__all__ = [
    "CaptureConfig",
    "CaptureError",
    "KafkaSettings",
    "SourceAddress",
    "TableFilter",
    "TransientCaptureError",
    "UnsupportedChangeError",
    "capture_changes",
    "parse_source_address",
]
