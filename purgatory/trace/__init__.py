"""The contract of traces: the form in which a run is written, and everything else reads it.

* `trace_schema`: the tables, their columns and types, and the version of all that.
* `observer`: the changes in a cluster's state during a run, and their rows.
* `effects`: what a service did, as its program records it.
* `trace_tables`: the buffers of rows during a run; `trace_writer` puts them on disk.
* `rounded_waits`: the one rounding of waits that are counted.
"""
