"""Report of `--report DIR`: files for other tools, each complete or absent."""
