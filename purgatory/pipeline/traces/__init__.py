"""Traces in: found by `survey`, described by `head`, `parts` and `schema`, read by `read_traces`.

What is wrong in a row is a reason of `row_checks`; what becomes of a bad row is in `quarantine`.
"""
