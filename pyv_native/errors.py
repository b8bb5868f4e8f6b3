"""Errors of the native subset."""


class NativeError(Exception):
    """Base class."""


class SubsetError(NativeError):
    """A source outside the subset: module, line and remedy."""


class CheckError(NativeError):
    """A check that failed while a function ran: module, line, and the values that it saw."""
