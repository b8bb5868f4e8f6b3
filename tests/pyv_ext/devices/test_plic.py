from dataclasses import dataclass, field

import pytest
from device_rig import PLIC, Rig
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws

from pyv_ext.devices.plic import SOURCES, Plic
from pyv_ext.machine.plic import set_levels

PENDING, ENABLE, THRESHOLD, CLAIM = 0x1000, 0x2000, 0x20_0000, 0x20_0004


@dataclass
class Gateway:
    level: bool = False
    pending: bool = False
    in_service: bool = False
    enabled: bool = False
    priority: int = 0

    def sample(self) -> None:
        if self.level and not self.in_service:
            self.pending = True


@dataclass
class PlicBySpecification:
    """One object per source, the sentences of the PLIC specification one by one."""

    sources: dict[int, Gateway] = field(default_factory=lambda: {s: Gateway() for s in range(1, SOURCES + 1)})
    threshold: int = 0

    def set_level(self, source: int, level: bool) -> None:
        self.sources[source].level = level
        self.sources[source].sample()

    def ready(self) -> list[tuple[int, int]]:
        able = [(-g.priority, s) for s, g in self.sources.items() if g.pending and g.enabled and g.priority]
        return sorted(able)

    @property
    def irq(self) -> bool:
        return any(-priority > self.threshold for priority, _ in self.ready())

    def claim(self) -> int:
        ready = self.ready()
        if not ready:
            return 0
        gateway = self.sources[ready[0][1]]
        gateway.pending, gateway.in_service = False, True
        return ready[0][1]

    def complete(self, source: int) -> None:
        gateway = self.sources.get(source)
        if gateway is not None and gateway.enabled:
            gateway.in_service = False
            gateway.sample()


few = st.sampled_from([1, 2, 31])
steps = st.one_of(
    st.tuples(st.just("level"), few, st.booleans()),
    st.tuples(st.just("priority"), few, st.integers(0, 9)),
    st.tuples(st.just("enable"), st.just(0), st.lists(few).map(lambda ids: sum(1 << i for i in set(ids)) | 1)),
    st.tuples(st.just("threshold"), st.just(0), st.integers(0, 9)),
    st.tuples(st.just("claim"), st.just(0), st.just(0)),
    st.tuples(st.just("complete"), st.one_of(few, st.sampled_from([0, 4, 32, 0xFFFF_FFFF])), st.just(0)),
)


@settings(max_examples=draws(200), deadline=None)
@given(st.lists(steps, max_size=60))
def test_equals_the_specification(script: list[tuple[str, int, int]]) -> None:
    plic, truth = Plic(), PlicBySpecification()
    for source, gateway in truth.sources.items():
        gateway.enabled, gateway.priority = True, 1
        plic.write(4 * source, 4, 1, 0)
    plic.write(ENABLE, 4, 0xFFFF_FFFF, 0)
    for what, source, value in script:
        if what == "level":
            truth.set_level(source, bool(value))
            set_levels(plic.record, sum(1 << s for s, g in truth.sources.items() if g.level))
        elif what == "priority":
            plic.write(4 * source, 4, value, 0)
            truth.sources[source].priority = value & 7
        elif what == "enable":
            plic.write(ENABLE, 4, value, 0)
            for s, gateway in truth.sources.items():
                gateway.enabled = bool(value >> s & 1)
        elif what == "threshold":
            plic.write(THRESHOLD, 4, value, 0)
            truth.threshold = value & 7
        elif what == "claim":
            assert plic.read(CLAIM, 4, 0) == truth.claim()
        else:
            plic.write(CLAIM, 4, source, 0)
            truth.complete(source)
        assert plic.irq == truth.irq
        assert plic.read(PENDING, 4, 0) == sum(1 << s for s, g in truth.sources.items() if g.pending)


def armed(**priorities: int) -> Plic:
    """All sources enabled, `s3=5` gives source 3 priority 5 and raises it."""
    plic = Plic()
    plic.write(ENABLE, 4, 0xFFFF_FFFF, 0)
    for name, priority in priorities.items():
        plic.write(4 * int(name[1:]), 4, priority, 0)
    set_levels(plic.record, sum(1 << int(name[1:]) for name in priorities))
    return plic


def test_highest_priority_first_then_lowest_source() -> None:
    plic = armed(s9=2, s3=5, s2=5, s1=0)
    assert [plic.read(CLAIM, 4, 0) for _ in range(4)] == [2, 3, 9, 0]


def test_a_claim_ignores_the_threshold_the_line_does_not() -> None:
    plic = armed(s4=3)
    plic.write(THRESHOLD, 4, 3, 0)
    assert not plic.irq
    assert plic.read(CLAIM, 4, 0) == 4


@pytest.mark.parametrize("source", [1, 4, SOURCES])
def test_a_level_that_stays_high_interrupts_again_after_completion(source: int) -> None:
    plic = armed(**{f"s{source}": 1})
    assert plic.read(CLAIM, 4, 0) == source
    assert not plic.irq
    set_levels(plic.record, 1 << source)
    assert not plic.irq, "in service: the gateway passes nothing"
    plic.write(CLAIM, 4, source, 0)
    assert plic.irq


def test_a_level_that_fell_while_in_service_does_not() -> None:
    plic = armed(s4=1, s5=1)
    assert plic.read(CLAIM, 4, 0) == 4
    set_levels(plic.record, 1 << 5)
    plic.write(CLAIM, 4, 4, 0)
    assert plic.read(CLAIM, 4, 0) == 5
    assert not plic.irq


def test_a_completion_of_a_disabled_source_is_ignored() -> None:
    plic = armed(s4=1)
    plic.read(CLAIM, 4, 0)
    plic.write(ENABLE, 4, 0, 0)
    plic.write(CLAIM, 4, 4, 0)
    plic.write(ENABLE, 4, 0xFFFF_FFFF, 0)
    assert not plic.irq


@pytest.mark.parametrize(
    ("offset", "size", "loads", "stores"),
    [
        (0x0, 4, False, False),  # source 0 does not exist
        (0x4, 4, True, True),
        (0x7C, 4, True, True),
        (0x80, 4, False, False),
        (PENDING, 4, True, False),
        (0x1004, 4, False, False),
        (ENABLE, 4, True, True),
        (0x2080, 4, False, False),  # context 1
        (CLAIM, 1, False, False),
        (0x20_1004, 4, False, False),
    ],
)
def test_which_accesses_are_accepted(offset: int, size: int, loads: bool, stores: bool) -> None:
    rig = Rig()
    assert (rig.load(PLIC + offset, size) is not None, rig.store(PLIC + offset, 0, size)) == (loads, stores)


def test_warl_fields_keep_their_legal_bits() -> None:
    rig = Rig()
    for offset, legal in ((0x28, 7), (THRESHOLD, 7), (ENABLE, 0xFFFF_FFFE)):
        rig.store(PLIC + offset, 0xFFFF_FFFF)
        assert rig.load(PLIC + offset) == legal
