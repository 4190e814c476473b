"""Traces on their way in: found (`trace_set`), described (`trace_files`), and read for an engine
(`spark_reader`, `duckdb_reader`), from folders or stores (`stores`).

`purgatory.trace.trace_schema` has what a table must be, `row_rules` what is wrong with a row.
"""
