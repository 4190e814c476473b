"""Traces in: found by `survey`, described by `trace_head` and `trace_parts`, read by
`read_traces`. `purgatory.trace.trace_schema` has what a table must be.

What is wrong in a row is a reason of `row_rules`; what becomes of a bad row is in `quarantine`.
"""
