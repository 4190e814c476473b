"""Operations of a cluster or a simulation as rows in topics, and a Spark query that follows them.

* `publisher`: operations, sends and reads as JSON into topics.
* `source`: the topic of operations as a stream of records, and what of it is not read yet.
* `windowed_waits`: from records to the waits of each window, in SQL: `operations.sql` parses a
  record, `counts.sql` counts the rows of a batch, and `windows.sql` closes windows.
* `checkpoint`: the open windows and the watermark between two batches, and the query's settings.
* `stream`: the query of `purgatory stream`; `sinks` and `metrics` get its results.
"""
