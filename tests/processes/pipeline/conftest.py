"""The fixtures of `tests/spark/pipeline`."""

from tests.spark.pipeline.conftest import hand_operations, slow_follower_trace, write_trace

__all__ = ["hand_operations", "slow_follower_trace", "write_trace"]
