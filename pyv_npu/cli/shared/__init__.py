"""What the commands share: options, output, replays, sessions with the core."""
