"""What a run keeps for the next one of its program, and what that depends on."""
