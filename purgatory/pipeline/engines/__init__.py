"""The engines that run jobs: Spark, or DuckDB where Spark can't."""
