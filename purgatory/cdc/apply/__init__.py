"""A change log into a database, exactly once."""
