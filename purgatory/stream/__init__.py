"""Operations of a cluster as rows in topics, and a Spark query that follows them.

* `publisher`: operations, sends and reads as JSON into topics.
* `source`: the topic of operations as a stream of records, and what of it is not read yet.
* `watermark`: the event time before which rows are late, held back by partition.
* `windowed_waits`: from records to the waits of each window, in SQL: `operations.sql` parses a
  record, `counts.sql` counts the rows of a batch, and `windows.sql` closes windows.
* `windowed_occupancy`: from waits to how many operations were parked in each window, by the SQL of
  the job on traces.
* `checkpoint`: what is kept between two batches (the open windows, the watermark, and waits for
  occupancy), and the query's settings.
* `stream`: the query of `purgatory stream`; `sinks` and `metrics` get its results.
"""
