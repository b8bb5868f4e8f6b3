"""Which versions of what took part in a run."""

import platform
from importlib import metadata

MISSING = "missing"
PACKAGES = ("numpy", "ml_dtypes", "pyelftools", "PyYAML")
"""What `pip install` brings along."""


def versions() -> dict[str, str]:
    """Version of this package, of Python and of each package, MISSING where it is not installed."""
    found = {"pyv_npu": _version("pyv-npu"), "python": platform.python_version()}
    return found | {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return MISSING
