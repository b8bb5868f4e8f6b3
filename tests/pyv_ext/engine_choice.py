"""Which engine the rigs make: `each_engine` of conftest.py sets it."""

from pyv_ext.bus.bus import Bus
from pyv_ext.cores import make_engine
from pyv_ext.engines.engine import Engine
from pyv_ext.hart.hart import Hart

NAME = "reference"


def chosen_engine(hart: Hart, bus: Bus, *, misaligned: bool = False) -> Engine:
    return make_engine(NAME, hart, bus, misaligned=misaligned)
