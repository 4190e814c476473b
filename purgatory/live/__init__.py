"""What a cluster or a simulation does, as rows in topics, and the jobs that follow them live.

* `publish`: operations, sends and reads as JSON into topics.
* `rows`, `waits`, `order`: functions from DataFrames to DataFrames, on a stream.
* `stream`: the queries of ``purgatory stream``; `topic_records` is what they read, `result_places`
  and `live_metrics` are where their results go, and `quick_start` is why they begin soon.
"""
