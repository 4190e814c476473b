"""The jobs of `purgatory.analysis` on DuckDB, in the program itself and without Java.

What they compute is said once, in the functions that Spark runs: the SQL in `sql/` is generated
from these (`make sql`), and nobody edits it.
"""
