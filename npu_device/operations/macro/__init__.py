"""The macro form: one file per operation that says what it takes, what it computes and in which steps."""
