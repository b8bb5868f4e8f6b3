"""Shared parts of the commands: options, output, replays, sessions with the core."""
