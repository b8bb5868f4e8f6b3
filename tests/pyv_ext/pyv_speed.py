"""Cycles per CPU second of stock Py-V and of the extended core, on the same program in the same process."""

import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO

from hart_rig import assemble
from pyv_found import EVALUATIONS

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import Ram
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Isa
from pyv_ext.timing import CoreTiming

STOCK = "stock Py-V"
WANTED = {"pyv-change-driven": 10_000 / 7_700, "pyv": 30_000 / 7_700}
"""The ratios to stock Py-V that we hold."""

PROGRAM = """
addi x10,x0,0x400
again:
addi x1,x1,1
add x2,x2,x1
slli x3,x1,3
xor x4,x4,x3
sw x4,0(x10)
lw x5,0(x10)
sltu x6,x5,x2
andi x7,x5,255
beq x6,x0,skip
sub x8,x5,x7
skip:
jal x9,next
next:
bne x1,x0,again
"""


def measure(cycles: int, rounds: int) -> dict[str, float]:
    """The best of `rounds`, which take turns."""
    runs = {STOCK: _stock(cycles), **{name: _extended(name, cycles) for name in EVALUATIONS}}
    best = dict.fromkeys(runs, 0.0)
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.process_time()
            run()
            best[name] = max(best[name], cycles / (time.process_time() - began))
    return best


def ratios(best: dict[str, float]) -> dict[str, float]:
    return {name: speed / best[STOCK] for name, speed in best.items() if name != STOCK}


def _stock(cycles: int) -> Callable[[], object]:
    from pyv.models.singlecycle import SingleCycleModel
    from pyv.simulator import Simulator

    Simulator.clear()
    with redirect_stdout(StringIO()):
        model = SingleCycleModel()
    model.load_instructions(list(assemble(Isa("rv32i"), PROGRAM, 0)))
    return lambda: model.run(cycles)


def _extended(evaluation: str, cycles: int) -> Callable[[], object]:
    bus = Bus(Clock(), CoreTiming())
    bus.add_ram(Ram("ram", 0, 0x2000))
    bus.poke(0, assemble(Isa("rv32im_zicsr"), PROGRAM, 0))
    hart = Hart(Isa("rv32im_zicsr"), bus.timing, bus.clock.records)
    engine = EVALUATIONS[evaluation](hart, bus)
    return lambda: engine.run(hart.cycle + cycles)
