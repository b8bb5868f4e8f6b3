"""Whether Py-V is here. Tests that need it skip visibly where it is not, and say how to get it."""

from collections.abc import Callable
from functools import partial

import pytest

from pyv_ext.bus.bus import Bus
from pyv_ext.engines.engine import Engine
from pyv_ext.hart.hart import Hart
from pyv_ext.pyv_adapter import loader
from pyv_ext.pyv_adapter.engine import PyvEngine

MISSING = loader.missing()
needs_pyv = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

MakesEngine = Callable[[Hart, Bus], Engine]
EVALUATIONS: dict[str, MakesEngine] = {
    "pyv": PyvEngine,
    "pyv-change-driven": partial(PyvEngine, specialised=False),
}
"""The core in both ways of evaluation."""
