"""Search and import of Py-V, without the side effects of importing it.

Py-V is on no package registry: it is found through PYV_HOME, in the cache of `pyv-npu get-py-v`, or is importable. Its
module `pyv.log` would truncate ./run.log and disable all logging of the process. A substitute replaces it permanently,
so that later imports of Py-V do not do so either. A Py-V that is already imported is used unchanged.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from pyv_ext.errors import PyvExtError
from pyv_ext.pyv_adapter import pinned

HOME = "PYV_HOME"
REMEDY = f"{pinned.COMMAND} brings it, or clone github.com/kyaso/py-v and set {HOME} to its folder"


def load() -> None:
    """Import Py-V and check its structure. PyvExtError, in one line, if it is missing or another version."""
    modules = set(sys.modules)
    try:
        with _search_path():
            _import()
            from pyv_ext.pyv_adapter import structure
    except ImportError as error:
        for name in [name for name in sys.modules if name.partition(".")[0] == "pyv" and name not in modules]:
            del sys.modules[name]
        location = f"not in {HOME}={home()}" if home() else f"{HOME} is not set"
        raise PyvExtError(f"core pyv: Py-V is not here ({location}; {error}): {REMEDY}") from None
    structure.check(folder())


def missing() -> str | None:
    """Return None when Py-V can be used, else a line with the remedy."""
    try:
        load()
    except PyvExtError as error:
        return str(error)
    return None


def home() -> str:
    """Return the folder in PYV_HOME, which comes before the copy in the cache; "" if it is not set."""
    return os.environ.get(HOME, "")


def folder() -> str:
    """Return the folder of the loaded Py-V."""
    import pyv

    return str(Path(str(pyv.__file__)).parent.parent)


@contextmanager
def _search_path() -> Iterator[None]:
    """Search PYV_HOME, else the copy in the cache, first while Py-V is imported and not at all afterwards."""
    folder_path = home() or str(pinned.copy() or "")
    if not folder_path:
        yield
        return
    sys.path.insert(0, folder_path)
    try:
        yield
    finally:
        sys.path.remove(folder_path)


def _import() -> None:
    """Import all of Py-V that we use."""
    import pyv

    if "pyv.log" not in sys.modules:
        sys.modules["pyv.log"] = pyv.log = _quiet_log()
    import pyv.models.singlecycle


def _quiet_log() -> ModuleType:
    module = ModuleType("pyv.log", "Stands in for Py-V's module, which reconfigures logging when it is imported.")
    silence = logging.Logger(module.__name__)
    silence.disabled = True
    module.logger = silence  # type: ignore[attr-defined]
    module.getLogger = lambda: silence  # type: ignore[attr-defined]
    return module
