"""Commands that create, fetch and read programs."""
