"""Schema changes: statements of MariaDB's and MySQL's SQL, and the steps that they mean."""
