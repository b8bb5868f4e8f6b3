"""The Py-V core against the reference engine, cycle by cycle, on random programs; scripts/lockstep-pyv runs thousands.

The mutations show that the programs reach what they are for: each takes one rule out of the core, and is found.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import compared_machines
import pytest
from compared_machines import Agreement, MachineDifference
from pyv_found import EVALUATIONS, MISSING, MakesEngine
from pyv_programs import random_image
from pyv_world import Event, side

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import NEVER
from pyv_ext.cores import make_engine
from pyv_ext.engines.engine import Engine
from pyv_ext.hart.hart import Hart

if MISSING is not None:
    pytest.skip(MISSING, allow_module_level=True)

from pyv.stages import EXStage, IDStage, WBStage

from pyv_ext.pyv_adapter.clocked_core import ClockedCore
from pyv_ext.pyv_adapter.signals import Duty
from pyv_ext.pyv_adapter.stages import Decode, Execute, MemoryAccess, WriteBack
from pyv_ext.pyv_adapter.system import SystemUnit

CYCLES = 300


def compare(engine: MakesEngine, seed: int) -> MachineDifference | Agreement:
    image = random_image(seed, CYCLES)
    return compared_machines.run(side("reference", Engine, image), side("pyv", engine, image), CYCLES)


@pytest.mark.parametrize(("evaluation", "seeds"), [("pyv", range(100)), ("pyv-change-driven", range(100, 140))])
def test_random_programs_run_alike_in_every_cycle(evaluation: str, seeds: range) -> None:
    for seed in seeds:
        result = compare(EVALUATIONS[evaluation], seed)
        assert isinstance(result, Agreement), f"seed {seed}, {result}"


def test_the_programs_do_all_that_they_are_for() -> None:
    done: Counter[object] = Counter()

    class Tracer:
        def retire(self, pc: int, start: int, end: int, instruction: Any) -> None:
            done[instruction.name] += 1
            done["waited"] += end > start + 1

        def trap(self, pc: int, cause: int, value: int, start: int, end: int, interrupt: bool) -> None:
            done["interrupt" if interrupt else "trap", cause] += 1

    for seed in range(100):
        world = side("reference", Engine, random_image(seed, CYCLES))
        world.engine.add_tracer(Tracer())
        world.engine.run(CYCLES)
        done.update(entry[0] for entry in world.journal)
        done.update("dma" for entry in world.journal if isinstance(entry[1], Event) and entry[1].address)
    never = ("ecall", "ebreak", "traps", "fence.tso")  # the first three trap, the last is one word of many
    wanted: list[object] = [row.name for row in world.engine.isa.rows if row.name not in never]
    wanted += [("trap", cause) for cause in (0, 1, 2, 3, 4, 5, 6, 7, 11, 24)]
    wanted += [("interrupt", cause) for cause in (3, 7, 11)]
    wanted += ["waited", "dma", "read", "write", "refused", "csr read", "csr write", "event"]
    assert [item for item in wanted if done[item] < 3] == []


@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_a_run_may_be_cut_anywhere(evaluation: str) -> None:
    for seed in range(200, 212):
        image, chance = random_image(seed, CYCLES), random.Random(seed)
        whole, cut = side("whole", EVALUATIONS[evaluation], image), side("cut", EVALUATIONS[evaluation], image)
        stops = [whole.engine.run(CYCLES), None]
        while stops[1] is None and cut.engine.hart.cycle < CYCLES:
            until = min(cut.engine.hart.cycle + chance.randrange(1, 9), CYCLES)
            stops[1] = cut.engine.run(until) if chance.random() < 0.7 else cut.engine.step(until)
        assert stops[0] == stops[1]
        assert (whole.state(), whole.journal) == (cut.state(), cut.journal)


def test_the_fast_engine_runs_alike_too() -> None:
    def engine(hart: Hart, bus: Bus) -> Engine:
        return make_engine("fast", hart, bus)

    for seed in range(300, 320):
        image = random_image(seed, CYCLES)
        result = compared_machines.run(side("fast", engine, image), side("pyv", EVALUATIONS["pyv"], image), CYCLES)
        assert isinstance(result, Agreement), f"seed {seed}, {result}"


# -- mutations -------------------------------------------------------------------------------------------------


def _nothing(self: Any) -> None:
    pass


def _no_kill(self: WriteBack) -> None:
    WBStage.process(self)
    result = self.result_i.read()
    if result.rd:
        self.regfile.write_request(result.rd, result.value)


def _nothing_waits(self: ClockedCore, begin: Any = ClockedCore.begin) -> bool:
    waiting, self._hart.waiting = self._hart.waiting, None
    try:
        return bool(begin(self))
    finally:
        self._hart.waiting = waiting


def _wfi_is_never_squashed(self: ClockedCore, begin: Any = ClockedCore.begin) -> bool:
    squashes = begin(self)
    if squashes and self.holds_wfi:
        with self._evaluation.driving:
            self.core.irq.write(0)
        return False
    return bool(squashes)


def _wfi_wants_mie(self: SystemUnit, process: Any = SystemUnit.process) -> None:
    process(self)
    work = self.work_i.read()
    if work.duty is Duty.WFI and not self.stall_o.read() and self._hart.interrupt() is None:
        self._stall(self._hart.cycle + 1, NEVER)


def _access_while_misaligned(self: MemoryAccess, process: Any = MemoryAccess.process) -> None:
    process(self)
    self.write_port.we_i.write(self.EXMEM_i.read().mem == 2)


def _same_word_same_value(self: MemoryAccess, process: Any = MemoryAccess.process) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(self, "process_load", lambda: None)
        process(self)


def _devices_without_refetch(self: ClockedCore) -> None:
    self._evaluation.requeue(self.core.mem.process_read0)


def _devices_without_reload(self: ClockedCore) -> None:
    if self.core.mem.fetch_is_stale:
        with self._evaluation.driving:
            self.core.mem.process_read1()
        self._load_registers()


ANY, CHANGES = tuple(EVALUATIONS), ("pyv-change-driven",)
MUTATIONS: dict[str, tuple[type, str, Callable[..., Any], tuple[str, ...]]] = {
    "a stall is not asked again": (ClockedCore, "_after_stall", _nothing, CHANGES),
    "a jump to itself is not evaluated again": (ClockedCore, "_after_jump_to_itself", _nothing, CHANGES),
    "a store is not fetched": (ClockedCore, "_after_store", _nothing, CHANGES),
    "DMA is neither fetched nor loaded": (ClockedCore, "_after_devices", _nothing, ANY),
    "DMA is not fetched": (ClockedCore, "_after_devices", _devices_without_refetch, ANY),
    "DMA is not loaded": (ClockedCore, "_after_devices", _devices_without_reload, CHANGES),
    "what asked units drive stays": (ClockedCore, "release", _nothing, ANY),
    "no kill": (WriteBack, "process", _no_kill, ANY),
    "misaligned stores go out": (MemoryAccess, "process", _access_while_misaligned, ANY),
    "interrupts squash a WFI that waits": (ClockedCore, "begin", _nothing_waits, ANY),
    "interrupts squash no WFI": (ClockedCore, "begin", _wfi_is_never_squashed, ANY),
    "WFI wants mstatus.MIE": (SystemUnit, "process", _wfi_wants_mie, ANY),
    "stock SLT": (Execute, "alu", EXStage.alu, ANY),
    "stock JALR": (Decode, "wb_sel", IDStage.wb_sel, ANY),
    "stock extension of loads": (MemoryAccess, "process", _same_word_same_value, CHANGES),
}


@pytest.mark.parametrize(
    ("name", "evaluation"), [(name, evaluation) for name, (*_, where) in MUTATIONS.items() for evaluation in where]
)
def test_without_this_rule_the_programs_find_a_difference(
    name: str, evaluation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, mutant, _ = MUTATIONS[name]
    monkeypatch.setattr(owner, attribute, mutant)
    for seed in range(100):
        try:
            if isinstance(compare(EVALUATIONS[evaluation], seed), MachineDifference):
                return
        except Exception:  # a mutant may well break down instead
            return
    pytest.fail(f"{name}: no difference in 100 programs")
