"""Which versions of what took part in a run."""

import platform
import re
from importlib import metadata

DISTRIBUTION = "pyv-npu"
MISSING = "missing"


def version() -> str:
    """Of this package; MISSING where it is not installed."""
    return _version(DISTRIBUTION)


def versions() -> dict[str, str]:
    """Version of this package, of Python and of each package that this one depends on; MISSING where there is none."""
    found = {"pyv_npu": version(), "python": platform.python_version()}
    return found | {name: _version(name) for name in dependencies()}


def dependencies() -> list[str]:
    """What `pip install` brings along, as pyproject.toml names it; empty where this package is not installed."""
    try:
        rows = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    return [re.split(r"[^\w.-]", row, maxsplit=1)[0] for row in rows if "extra ==" not in row]


def project_url(name: str) -> str:
    """Return an address of the project by its name in pyproject.toml; "" where this package is not installed."""
    try:
        rows = metadata.metadata(DISTRIBUTION).get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return ""
    urls = dict(row.split(", ", 1) for row in rows)
    return urls.get(name, "")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return MISSING
