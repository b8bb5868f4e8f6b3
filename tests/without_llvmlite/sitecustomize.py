"""Python as if llvmlite were not installed, for each process that has this folder on its PYTHONPATH.

Python imports `sitecustomize` when it starts; `pytest --without-llvmlite` sets the path for itself and its children.
"""

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from typing import Any

HIDDEN = "llvmlite"


class PathFinderWithout(PathFinder):
    """Finds neither the package nor its metadata."""

    @classmethod
    def find_spec(cls, fullname: str, *args: Any) -> ModuleSpec | None:
        return None if fullname.partition(".")[0] == HIDDEN else super().find_spec(fullname, *args)

    @classmethod
    def find_distributions(cls, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        given = DistributionFinder.Context() if context is None else context
        return (found for found in PathFinder.find_distributions(given) if found.metadata["Name"] != HIDDEN)


def hide() -> None:
    """Replace the finder of this process."""
    if PathFinder in sys.meta_path:
        sys.meta_path[sys.meta_path.index(PathFinder)] = PathFinderWithout


hide()
