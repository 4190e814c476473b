"""Errors of an analysis, in words for its user."""

from __future__ import annotations


class PipelineError(Exception):
    """An analysis that can't be done; the message says what was wrong, where, and what is right."""

    is_transient = False
    """Whether another attempt may succeed."""


class TraceError(PipelineError):
    """A trace that is not there, not whole, or not of a known schema."""


class OutputError(PipelineError):
    """A place where the results can't be written."""


class SessionError(PipelineError):
    """A Spark session that could not be started."""


class FaultError(PipelineError):
    """A temporary failure: brokers that don't respond, a worker that was killed."""

    is_transient = True


class SessionEndedError(SessionError):
    """A Spark session whose Java process ended, as when the machine had no memory left."""

    is_transient = True
