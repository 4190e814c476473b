"""The fixtures of `tests/spark/pipeline`."""

from tests.spark.pipeline.conftest import simulated

__all__ = ["simulated"]
