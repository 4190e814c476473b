"""The jobs on DuckDB, in this process and without Java, by SQL that is generated from them."""
