"""What a cluster or a simulation does as rows in topics, and queries of Spark that follow them.

* `publisher`: operations, sends and reads as JSON into topics.
* `rows`, `windowed_waits`, `order`, `partition_state`: from streams of records to streams of
  results, as functions from DataFrames to DataFrames.
* `stream`: the queries of `purgatory stream`; `sinks` and `metrics` get their results, and
  `python_daemon` is the process from which Spark's Python workers fork.
"""
