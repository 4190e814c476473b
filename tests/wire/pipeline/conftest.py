"""The fixtures of `tests/spark/pipeline`."""

from tests.spark.pipeline.conftest import cluster, simulated

__all__ = ["cluster", "simulated"]
