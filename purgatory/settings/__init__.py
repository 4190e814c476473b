"""Settings that people write into TOML documents."""
