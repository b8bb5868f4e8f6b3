"""What comes before and after a call of a device by native code: stores on their way, events, what caches know."""

import random

import pytest
from called_devices import Moody, interrupted_program, pair
from near_rig import AT_OWN, AT_UART, TIMINGS, Own, looped, until_it_stops

from pyv_ext.devices.uart import Uart
from pyv_ext.isa import Isa
from pyv_ext.protocols import Reply


def changing_program(isa: Isa, seed: int) -> list[int]:
    """Stores that may be deferrable right behind accesses that may change that."""
    chance, one = random.Random(seed), isa.encode
    words = list[int]()
    while len(words) < 80:
        for _ in range(chance.choice((1, 2, 2, 3, 8))):
            words.append(one("sw", rs1=AT_OWN, rs2=chance.randrange(16, 28), imm=chance.choice((0, 24, 24, 24))))
        words += [one("addi", rd=17, rs1=17, imm=5)] * chance.choice((0, 0, 3, 20, 150))
        words += chance.randrange(2) * [one("lw", rd=18, rs1=AT_OWN, imm=chance.choice((0, 0, 24, 28)))]
        words += [one("addi", rd=17, rs1=17, imm=5)] * chance.choice((0, 0, 70))
    return looped(isa, words)


@pytest.mark.parametrize("seed", [seed for seed in range(80, 107) if seed % len(TIMINGS)])
def test_what_an_access_changes_counts_for_stores_on_their_way(seed, monkeypatch):
    """Whether a store is deferrable is decided by the device as it is when the store arrives."""
    machines = reference, native = pair(monkeypatch, seed, own=Moody)
    for machine in machines:
        machine.load(changing_program(machine.hart.isa, seed))
    chance, longest = random.Random(seed), (60, 300, 4001)[seed // 3 % 3]
    while reference.hart.instret < 4000:
        until = reference.hart.cycle + chance.randint(1, longest)
        assert native.run(until) == reference.run(until), (seed, until)


@pytest.mark.parametrize(
    ("seed", "near"),
    [(52, True), (61, True), (64, False), (41, False), (44, True), (47, False), (50, True), (48, True)],
)
def test_what_is_due_comes_before_an_access(seed, near, monkeypatch):
    """Its own events, those of the timer, stores on their way."""
    machines = reference, native = pair(monkeypatch, seed, own=Moody, near=near)
    for machine in machines:
        machine.load(interrupted_program(machine.hart.isa, seed))
    chance = random.Random(seed)
    while reference.hart.instret < 3000:
        until = reference.hart.cycle + chance.randint(1, 4001)
        assert native.run(until) == reference.run(until), until


class Looking(Own):
    """It sees how much the UART has sent."""

    def _look(self, *what: int) -> None:
        uart = next(window.device for window in self._master.windows if isinstance(window.device, Uart))  # type: ignore[attr-defined]
        self.log.append((*what, len(uart.console.data)))

    def read(self, offset: int, size: int, now: int) -> int | Reply:
        self._look(offset, now)
        return now

    def write(self, offset: int, size: int, value: int, now: int) -> Reply | None:
        self._look(offset, value, now)
        return None


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_text_has_arrived_before_a_device_is_asked(near, seed, monkeypatch):
    machines = reference, native = pair(monkeypatch, seed, own=Looking, near=near)
    chance, one = random.Random(seed), native.hart.isa.encode
    words = list[int]()
    for _ in range(60):
        words += chance.randrange(3) * [one("sb", rs1=AT_UART, rs2=17)]
        words += chance.choice((0, 1, 20)) * [one("addi", rd=17, rs1=17, imm=1)]
        words += chance.randrange(3) * [one(chance.choice(("sw", "lw")), rd=18, rs1=AT_OWN, rs2=17)]
    for machine in machines:
        machine.load(looped(machine.hart.isa, words))
    for until in until_it_stops(reference, seed, 3000):
        assert native.run(until) == reference.run(until), until


class Telling(Own):
    """Stores to 24 are deferrable before and after each other load of 0; else they change the line. 28 is stable, and
    shows how often others were accessed."""

    _armed = _level = False

    @property
    def irq(self) -> bool:
        return self._level

    def deferrable(self, offset: int, size: int) -> bool:
        return offset == 24 and not self._armed

    def stable(self, offset: int, size: int) -> bool:
        return offset == 28

    def read(self, offset: int, size: int, now: int) -> int | Reply:
        if offset != 28:
            self.log.append((offset, now, self._clock.now))
            self._armed ^= True
        return len(self.log)

    def write(self, offset: int, size: int, value: int, now: int) -> Reply | None:
        self.log.append((offset, value, now))
        self._level ^= offset == 24 and self._armed
        return None


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_what_caches_know_of_a_device_does_not_outlast_a_call(near, seed, monkeypatch):
    """Which of its stores are deferrable, and what its stable registers show."""
    machines = reference, native = pair(monkeypatch, seed, own=Telling, near=near)
    for machine in machines:
        one = machine.hart.isa.encode
        nothing = [one("addi", rd=17, rs1=17, imm=1)] * 80
        load, stable = ([one("lw", rd=18, rs1=AT_OWN, imm=offset)] for offset in (0, 28))
        store, deferrable = ([one("sw", rs1=AT_OWN, rs2=17, imm=offset)] for offset in (0, 24))
        words = [
            *2 * load,
            *deferrable,
            *nothing,
            *load,
            *deferrable,
            *nothing,
            *3 * stable,
            *load,
            *3 * stable,
            *store,
            *nothing,
        ]
        machine.load(looped(machine.hart.isa, [*words, *stable, one("add", rd=19, rs1=19, rs2=18)]))
    chance = random.Random(seed)
    while reference.hart.instret < 4000:
        until = reference.hart.cycle + chance.randint(20, 200)
        assert native.run(until) == reference.run(until), until
