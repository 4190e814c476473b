"""What can go wrong with the data source, in words for the person who started the query."""

from __future__ import annotations


class SourceError(Exception):
    """A read that can't be done; the message says what was wrong, where, and what is right."""

    passes = False
    """Whether the same may succeed when it's started again."""


class OptionError(SourceError):
    """An option that is missing, unknown, or has a value that it can't have."""


class BrokerError(SourceError):
    """Brokers that refuse, or that did not answer in time."""


class BrokerAwayError(BrokerError):
    """Brokers that did not answer in time, and may yet."""

    passes = True


class DataLossError(SourceError):
    """Records that the query was to read are not there any more."""
