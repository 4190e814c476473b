"""Errors of clients' requests."""

from __future__ import annotations


class BadRequestError(Exception):
    """Bytes that are no request of the protocol: the connection is closed."""


class UnsupportedVersionError(BadRequestError):
    """A known API in an unsupported version."""

    def __init__(self, api_key: int, api_version: int, correlation_id: int) -> None:
        super().__init__(f"API {api_key} version {api_version} is not spoken here")
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id


class SwollenBatchError(ValueError):
    """A compressed batch that exceeds the decompression limit."""
