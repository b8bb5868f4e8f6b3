"""The one exception base of this package."""


class ToolchainError(Exception):
    """A tool is missing or refused its input; the message says value, rule and remedy."""
