"""What a cluster or a simulation does, as rows in topics, and the jobs that follow them live.

* `publish`: operations, sends and reads as JSON into topics.
* `rows`, `waits`, `order`: functions from DataFrames to DataFrames, on a stream.
* `stream`: the queries of ``purgatory stream``, with `parts`, `result_topic` and `live_metrics`
  as the places where their results go.
"""
