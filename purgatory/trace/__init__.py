"""The contract of traces: what a run is written as, and everything else reads.

* `trace_schema`: the tables, their columns and types, and the version of all that.
* `observer`: what changes in a cluster's state while a run goes on, and the rows of that.
* `effects`: what a service did, as somebody tells it.
* `trace_tables`: where rows go while a run goes on; `trace_writer` puts them on disk.
* `rounded_waits`: the one rounding of waits that are counted.
"""
