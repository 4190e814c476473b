"""The jobs of the pipeline: chains of SQL statements that both engines run."""
