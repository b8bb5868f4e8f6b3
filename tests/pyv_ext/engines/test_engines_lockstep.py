"""All engines against the reference on random programs with random budgets; and that this finds what is broken."""

from functools import cache

import engine_world
import pytest
from engine_world import compare
from native_forms import NATIVE_FORMS
from shares import slow

from pyv_ext.bus.bus import Bus
from pyv_ext.engines.fast import engine as fast
from pyv_ext.machine import functions
from pyv_native.module import NativeModule

SEEDS = range(24)
INSTRUCTIONS = 6000


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """Everything is translated at once, so that a short program is executed by translations."""
    monkeypatch.setattr(fast, "WARM_UP", 0)


@pytest.fixture
def native(monkeypatch):
    from pyv_ext.engines.fast import native, space

    monkeypatch.setattr(space, "HOT", 6)
    monkeypatch.setattr(space, "WARM", 2)
    return native


@pytest.mark.parametrize("seed", SEEDS)
def test_fast_equals_reference(seed, native):
    compare(("reference", "fast"), seed, INSTRUCTIONS, xlen=(32, 64)[seed % 3 == 2])


@pytest.mark.parametrize("warm_up", [0, 1, 17, 300])
@pytest.mark.parametrize("seed", range(300, 304))
def test_wild_jumps_under_interrupts_with_a_small_warm_up(seed, warm_up, monkeypatch, native):
    """Closures hand over to native code in the middle of what goes anywhere, while interrupts come."""
    monkeypatch.setattr(fast, "WARM_UP", warm_up)
    compare(("reference", "fast"), seed, INSTRUCTIONS, 400, jumps=True)


def test_wild_jumps_fault_where_there_is_nothing_and_run_what_was_not_meant_to_be_code():
    """Over some seeds: fetches fail, and instructions begin where the program has none of its own, in data too."""
    causes, places = set(), set()
    for seed in range(300, 308):
        world = engine_world.World("reference", seed, jumps=True)
        while world.hart.instret < 2000:
            world.run(world.hart.cycle + 5)
            causes.add(world.hart.csrs.mcause)
            places.add("data" if world.hart.pc >= engine_world.DATA else "odd" if world.hart.pc & 2 else "even")
    assert causes >= {1, 2, 1 << 31 | 3, 1 << 31 | 7, 1 << 31 | 11}
    assert places == {"data", "odd", "even"}


@pytest.mark.parametrize("form", NATIVE_FORMS, ids=str)
@pytest.mark.parametrize("seed", [*range(24, 28), *slow(*range(28, 36))])
def test_each_form_of_native_code_equals_reference(seed, form, monkeypatch):
    form.choose(monkeypatch)
    compare(("reference", "fast"), seed, INSTRUCTIONS)


@pytest.mark.parametrize("seed", range(36, 39))
def test_fast_equals_reference_where_misaligned_accesses_are_allowed(seed, native):
    compare(("reference", "fast"), seed, INSTRUCTIONS, misaligned=True)


@pytest.mark.parametrize("seed", range(100, 104))
def test_engines_agree_as_they_are_shipped(seed, monkeypatch, native):
    monkeypatch.undo()
    compare(("reference", "fast"), seed, 60_000, longest=40_001)


@pytest.mark.parametrize("seed", range(2000, 2004))
def test_engines_agree_in_calm_worlds(seed, monkeypatch):
    """A part of what scripts/lockstep does at length: long loops, long slices."""
    monkeypatch.undo()
    assert compare(("reference", "fast"), seed, 400_000, 400_100, calm=True).instructions >= 400_000


def test_the_programs_do_what_they_are_for():
    """Over all seeds: most instructions are not traps, every kind of cause comes, code is overwritten in nearly all."""
    causes, instructions, traps, overwritten = set(), 0, 0, 0
    for seed in SEEDS:
        world = engine_world.World("reference", seed)
        code = bytes(world.ram.u8[:0x1000])
        while world.hart.instret < 3000:
            world.run(world.hart.cycle + 50)
            causes.add(world.hart.csrs.mcause)
        instructions, traps = instructions + world.hart.instret, traps + world.hart.traps
        overwritten += bytes(world.ram.u8[:0x1000]) != code
    assert causes >= {0, 1, 1 << 31 | 3, 1 << 31 | 7, 1 << 31 | 11, 2, 3, 4, 5, 6, 7, 11, 24}
    assert traps < instructions // 5
    assert overwritten >= len(SEEDS) - 3


# -- broken on purpose -----------------------------------------------------------------------------------------


def found(engine):
    """Whether lock-step finds a difference."""
    for seed in SEEDS:
        try:
            compare(("reference", engine), seed, 20_000)
        except (AssertionError, IndexError, KeyError, ValueError):
            return True
    return False


def no_drop(engine, pcs):
    """A translation outlives a change of its code."""


def test_native_translations_that_outlive_their_code_are_found(monkeypatch, native, unkept):
    monkeypatch.setattr(fast.FastEngine, "_drop", no_drop)
    assert found("fast")


def test_native_stores_that_miss_code_are_found(monkeypatch, native, unkept):
    nowhere = bytearray(engine_world.SIZE)

    original = native.set_addresses

    def set_addresses(state, bus):
        original(state, bus)
        state.lines = native.address_of(nowhere)

    monkeypatch.setattr(native, "set_addresses", set_addresses)
    assert found("fast")


def miscount(original, self, count, cycles):
    return original(self, count, cycles + 1)


def lose_one(original, self, values):
    return original(self, dict(list(values.items())[1:]))


@pytest.mark.parametrize(
    ("owner", "method", "wrong"),
    [("Region", "_after", miscount), ("_Registers", "save", lose_one)],
    ids=["cycles", "registers"],
)
def test_regions_that_lose_something_are_found(owner, method, wrong, monkeypatch, native, unkept):
    from pyv_ext.engines.fast import region

    original = getattr(getattr(region, owner), method)
    monkeypatch.setattr(getattr(region, owner), method, lambda *given: wrong(original, *given))
    assert found("fast")


def test_cached_reads_that_outlive_an_event_are_found(monkeypatch, native, unkept):
    def unchanging(checked):
        return NativeModule(
            functions.FUNCTIONS, functions.Machine, linkage=functions.LINKAGE, constants={"Machine.changes": 1}
        )

    monkeypatch.setattr(functions, "_module", cache(unchanging))
    assert found("fast")


def test_device_accesses_that_ignore_events_are_found(monkeypatch, native, unkept):
    from pyv_ext.engines.fast import records

    original = records.get
    monkeypatch.setattr(records, "get", lambda ir, name: original(ir, "until" if name == "limit" else name))
    assert found("fast")


def test_wrong_cycles_of_other_memories_are_found(monkeypatch, native, unkept):
    original = Bus._fill_memories

    def fill(self):
        original(self)
        for memory in self.clock.machine.memories:
            memory.load_cycles += 1

    monkeypatch.setattr(Bus, "_fill_memories", fill)
    assert found("fast")


@pytest.mark.parametrize("module", ["region", "interpreter"])
def test_native_code_that_oversteps_the_budget_is_found(module, monkeypatch, native, unkept):
    from pyv_ext.engines.fast import interpreter, region

    target = {"region": region, "interpreter": interpreter}[module]
    monkeypatch.setattr(target, "BIAS", target.BIAS - 1)
    assert found("fast")
