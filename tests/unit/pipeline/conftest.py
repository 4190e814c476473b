"""The fixtures of `tests/spark/pipeline`."""

from tests.spark.pipeline.conftest import cluster, simulated, slow_follower_trace

__all__ = ["cluster", "simulated", "slow_follower_trace"]
