"""Versions of all components that took part in a run."""

import platform
import re
from importlib import metadata

DISTRIBUTION = "pyv-npu"
MISSING = "missing"


def version() -> str:
    """Return that of this package; MISSING where it is not installed."""
    return installed_version(DISTRIBUTION)


def versions() -> dict[str, str]:
    """Return the versions on which the outcome of a run may depend: of this package, of Python, of its dependencies
    and of the packages that read MLIR; MISSING where a package is not installed."""
    packages = {name: installed_version(name) for name in (*dependencies(), *dependencies("mlir"))}
    return {"pyv_npu": version(), "python": platform.python_version()} | packages


def dependencies(extra: str = "") -> list[str]:
    """List the packages that `pip install` brings along, or those of an extra, as pyproject.toml names them; none
    where this package is not installed."""
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
    """Return an address of the project by its name in pyproject.toml; "" where this package is not installed."""
    try:
        rows = metadata.metadata(DISTRIBUTION).get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return ""
    urls = dict(row.split(", ", 1) for row in rows)
    return urls.get(name, "")


def installed_version(name: str) -> str:
    """Return the version of a package; MISSING where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return MISSING
