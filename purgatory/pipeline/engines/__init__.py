"""What runs the jobs: Spark, or DuckDB where Spark can't."""
