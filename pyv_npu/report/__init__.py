"""What `--report DIR` writes: files that other tools read, each complete or absent."""
