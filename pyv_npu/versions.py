"""Versions of all components of a run."""

import platform
import re
from importlib import metadata

DISTRIBUTION = "pyv-npu"
MISSING = "missing"


def version() -> str:
    """Return the version of this package; MISSING if it is not installed."""
    return installed_version(DISTRIBUTION)


def versions() -> dict[str, str]:
    """Return the versions on which the result of a run may depend: of this package, Python, its dependencies and the
    packages that read MLIR; MISSING if a package is not installed."""
    packages = {name: installed_version(name) for name in (*dependencies(), *dependencies("mlir"))}
    return {"pyv_npu": version(), "python": platform.python_version()} | packages


def dependencies(extra: str = "") -> list[str]:
    """Return the dependencies of this package, or of an extra, as named in pyproject.toml; [] if this package is not
    installed."""
    try:
        rows = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    names = []
    for row in rows:
        requirement, _, marker = row.partition(";")
        extras = re.findall(r"extra == ['\"]([\w-]+)", marker)
        if extras == ([extra] if extra else []):
            names.append(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])
    return names


def project_url(name: str) -> str:
    """Return a URL of the project by its name in pyproject.toml; "" if this package is not installed."""
    try:
        rows = metadata.metadata(DISTRIBUTION).get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return ""
    urls = dict(row.split(", ", 1) for row in rows)
    return urls.get(name, "")


def installed_version(name: str) -> str:
    """Return the version of a package; MISSING if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return MISSING
