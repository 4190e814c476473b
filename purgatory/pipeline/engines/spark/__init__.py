"""The jobs on Spark: its session, its Java, its progress, and how it ends."""
