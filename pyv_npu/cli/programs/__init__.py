"""Commands that make, bring and read programs."""
