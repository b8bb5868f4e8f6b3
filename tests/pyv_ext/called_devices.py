"""Devices in Python whose line, events and answers change, and programs that access them between all others."""

import random
from typing import Any

import numpy as np
import pytest
from native_forms import EARLY, Form
from near_rig import (
    AT_COMPARE,
    AT_CONTEXT,
    AT_OWN,
    AT_PLIC,
    AT_PRIORITY,
    AT_TIME,
    AT_UART,
    CLAIM,
    MAIN,
    Machine,
    Own,
    interrupting_program,
    looped,
)

from pyv_ext.bus.clock import Clock
from pyv_ext.isa import Isa
from pyv_ext.protocols import Reply

SETTLED = Form("fast", EARLY)
VALUES: tuple[Any, ...] = (0, 1, True, 0xFFFF_FFFF, 1 << 40 | 5, 1 << 70 | 9, -3, np.int64(-2), np.uint32(77))


class Moody(Own):
    """Its line, its events and its answers follow from what it was asked before. Stores to 24 are deferrable now and
    then, else they may do as much as all others, and 28 is stable."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._stored = self._kept = 0
        self._chance = random.Random(5)
        self._level = False
        self._event: int | None = None

    @property
    def irq(self) -> bool:
        return self._level

    def next_event(self) -> int | None:
        return self._event

    def advance(self, now: int) -> None:
        self.log.append((-1, now, self._clock.now))
        if self._event is not None and self._event <= now:
            self._event, self._level = None, False

    def _mood(self, now: int) -> None:
        mood = self._chance.random()
        if mood < 0.06:
            self._level, self._event = True, now + 1 + self._chance.randrange(200)
        elif mood < 0.12:
            self._event = now + 1 + self._chance.randrange(60)
        elif mood < 0.18 and not self._level:
            self._event = None
        elif mood < 0.22:
            self._level = False

    def deferrable(self, offset: int, size: int) -> bool:
        return offset == 24 and len(self.log) % 3 > 0

    def stable(self, offset: int, size: int) -> bool:
        return offset == 28

    def read(self, offset: int, size: int, now: int) -> int | Reply:
        if offset == 28:
            return self._stored
        reply = super().read(offset, size, now)
        if offset == 24:
            return self._kept
        self._mood(now)
        return self._chance.choice(VALUES) if offset < 8 else reply

    def write(self, offset: int, size: int, value: int, now: int) -> Reply | None:
        if offset == 24:
            self._kept = value + now & 0xFFFF_FFFF
            if not self.deferrable(offset, size):
                self._mood(now)
            return None
        super().write(offset, size, value, now)
        self._stored += 1
        self._mood(now)
        return Reply(wait=now % 5, fault=now % 11 == 0) if offset == 16 else None


class Calm(Own):
    """It might have a line and events; what it answers is the cycle."""

    @property
    def irq(self) -> bool:
        return False

    def next_event(self) -> int | None:
        return None

    def read(self, offset: int, size: int, now: int) -> int | Reply:
        super().read(offset, size, now)
        return now


PLACES = (*2 * ((0, "w"), (24, "w"), (28, "w")), (4, "w"), (4, "b"), (8, "w"), (12, "h"))
ODD_PLACES = ((16, "w"), (20, "w"))


def busy_program(isa: Isa, seed: int) -> list[int]:
    """Accesses of the device between those of all others."""
    chance, words = random.Random(seed), list[int]()
    for word in interrupting_program(isa, seed)[:-2]:
        words.append(word)
        while chance.random() < 0.5:
            offset, width = chance.choice((*PLACES, *ODD_PLACES))
            register = chance.randrange(16, 28)
            words.append(isa.encode(chance.choice("sl") + width, rd=register, rs1=AT_OWN, rs2=register, imm=offset))
    return looped(isa, words)


def interrupted_program(isa: Isa, seed: int) -> list[int]:
    """Mostly accesses of the device, whose interrupts are on; the timer comes between."""
    chance, one = random.Random(seed), isa.encode
    words = list[int]()
    for base, imm, value in ((AT_PRIORITY, 44, 5), (AT_PLIC, 0, -0x800), (AT_CONTEXT, 0, 0)):
        words += [one("addi", rd=16, imm=value), one("sw", rs1=base, rs2=16, imm=imm)]
    while len(words) < 60:
        what, register = chance.random(), chance.randrange(16, 28)
        if what < 0.1:
            words += 3 * [one("sw", rs1=AT_OWN, rs2=register, imm=24)] + [one("lw", rd=register, rs1=AT_OWN, imm=24)]
        elif what < 0.6:
            offset, width = chance.choice(PLACES if chance.random() < 0.9 else ODD_PLACES)
            name = chance.choice("sl") + width
            words += chance.randrange(1, 4) * [one(name, rd=register, rs1=AT_OWN, rs2=register, imm=offset)]
        elif what < 0.8:
            words.append(one("addi", rd=register, rs1=register, imm=chance.randrange(-90, 90)))
        elif what < 0.85:
            words += [one("lw", rd=16, rs1=AT_TIME), one("addi", rd=16, rs1=16, imm=chance.randrange(90))]
            words += [one("sw", rs1=AT_COMPARE, imm=4), one("sw", rs1=AT_COMPARE, rs2=16)]
        elif what < 0.9:
            words.append(one(chance.choice(("csrrsi", "csrrci")), imm=8, csr=0x300))
        elif what < 0.95:
            words.append(one("lw", rd=register, rs1=AT_CONTEXT, imm=CLAIM))
        else:
            words.append(one("sb", rs1=AT_UART, rs2=register))
    return looped(isa, words)


def pair(monkeypatch: pytest.MonkeyPatch, seed: int, form: Any = SETTLED, **given: Any) -> tuple[Machine, Machine]:
    form.choose(monkeypatch)
    return Machine("reference", seed, **given), Machine("fast", seed, **given)


def accessing(machines: tuple[Machine, Machine], *accesses: tuple[str, int]) -> None:
    """A loop of such accesses."""
    for machine in machines:
        one = machine.hart.isa.encode
        machine.hart.csrs.mtvec = MAIN + 0x80
        words = [one(name, rd=16, rs1=AT_OWN, rs2=17, imm=offset) for name, offset in accesses]
        words += [one("addi", rd=17, rs1=17, imm=3), one("jal", imm=-4 * (len(words) + 1))]
        machine.load(words)
