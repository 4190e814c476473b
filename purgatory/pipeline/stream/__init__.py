"""What a cluster or a simulation does, as rows in topics, and the jobs that follow them live.

* `row_publisher`: operations, sends and reads as JSON into topics.
* `live_rows`, `live_waits`, `live_order`: functions from DataFrames to DataFrames, on a stream.
* `stream`: the queries of ``purgatory stream``; `topic_records` is what they read, `result_places`
  and `live_metrics` are where their results go, and `quick_start` is why they begin soon.
"""
