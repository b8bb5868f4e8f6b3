"""Report of `--report DIR`: files that other tools read, each complete or absent."""
