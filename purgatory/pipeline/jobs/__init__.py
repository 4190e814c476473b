"""The jobs of the pipeline, by PySpark's functions: both engines run what they say."""
