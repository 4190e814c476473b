"""Traces on their way in: found (`trace_set`), described (`trace_files`), and read for an engine
(`spark_reader`, `duckdb_reader`), from folders or stores (`stores`).

`purgatory.trace.trace_schema` has the columns of the tables, `column_casts` the casts to their
types, `quarantine_rules` the rules for bad rows.
"""
