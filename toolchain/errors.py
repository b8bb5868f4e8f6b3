"""Errors of this package: one base, and one for models that cannot be compiled."""


class ToolchainError(Exception):
    """A tool is missing or refused its input; the message says value, rule and remedy."""


class ModelError(ToolchainError):
    """A model, or what was said about it on the command line, is wrong or not supported."""
