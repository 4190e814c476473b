"""The analysis of traces with Spark: waits and occupancy, as tables and as a page.

The modules here read the files of a trace and nothing else of the project, so that a trace from
any source that keeps to the documented columns can be analyzed. Importing this package imports
neither Spark nor a plotting library.
"""
