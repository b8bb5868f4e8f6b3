"""The two ways in which a guest ends the run: test finisher and HTIF."""

import pytest
from device_rig import FINISHER, RAM, Rig

from pyv_ext.devices.program_exit import SETTLE, Htif
from pyv_ext.devices.uart import Console
from pyv_ext.errors import PyvExtError
from pyv_ext.timing import CoreTiming

TOHOST, FROMHOST, BLOCK, TEXT = RAM + 0x1000, RAM + 0x1040, RAM + 0x2000, RAM + 0x3000


# -- finisher ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "size", "exits"),
    [(0x5555, 4, [0]), (0x5555, 2, [0]), (0x7_3333, 4, [7]), (0xFFFF_3333, 4, [0xFFFF]), (0x3333, 4, [0])],
)
def test_finisher_ends_the_run(value: int, size: int, exits: list[int]) -> None:
    rig = Rig()
    assert rig.store(FINISHER, value, size)
    assert (rig.exits, rig.resets) == (exits, [])


def test_finisher_asks_for_a_reset() -> None:
    rig = Rig()
    assert rig.store(FINISHER, 0x7777)
    assert (rig.exits, len(rig.resets)) == ([], 1)


def test_finisher_exits_when_a_posted_store_arrives() -> None:
    rig = Rig(CoreTiming(mmio_one_way=60))
    rig.store(FINISHER, 0x5555)
    rig.clock.advance(rig.now + 59)
    assert rig.exits == []
    rig.clock.advance(rig.now + 60)
    assert rig.exits == [0]


@pytest.mark.parametrize(
    ("offset", "size", "value"), [(0, 4, 0), (0, 4, 0x5556), (0, 1, 0x55), (2, 2, 0x5555), (4, 4, 0x5555)]
)
def test_finisher_faults_on_anything_else(offset: int, size: int, value: int) -> None:
    rig = Rig()
    assert not rig.store(FINISHER + offset, value, size)
    assert rig.load(FINISHER + offset, size) is None
    assert rig.exits == []


# -- HTIF ----------------------------------------------------------------------------------------------------------


class Host(Rig):
    def __init__(self) -> None:
        super().__init__()
        self.console = Console()
        self.htif = Htif(self.bus, TOHOST, FROMHOST, self.console, self.exits.append)

    def tohost(self, value: int, first: int = 0) -> None:
        """Two stores, half `first` first."""
        for half in (first, 1 - first):
            self.store(TOHOST + 4 * half, value >> 32 * half & 0xFFFF_FFFF)

    def word(self, address: int) -> int:
        return int.from_bytes(self.bus.peek(address, 8) or b"", "little")

    def call(self, *words: int) -> int:
        """A system call as riscv-tests makes it; its result as the guest reads it."""
        self.bus.poke(BLOCK, b"".join(word.to_bytes(8, "little") for word in words))
        self.tohost(BLOCK)
        assert self.word(FROMHOST) == 1
        self.bus.poke(FROMHOST, bytes(8))
        return self.word(BLOCK)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(("value", "code"), [(1, 0), (5 << 1 | 1, 5), (1337 << 1 | 1, 1337)])
def test_an_odd_value_ends_the_run_in_either_order_of_stores(value: int, code: int, first: int) -> None:
    host = Host()
    host.tohost(value, first)
    assert host.exits == [code]
    assert host.word(TOHOST) == 0


@pytest.mark.parametrize("first", [0, 1])
def test_a_character_is_not_taken_for_an_exit_code_between_its_halves(first: int) -> None:
    host = Host()
    for character in b"AbC":
        host.tohost(1 << 56 | 1 << 48 | character, first)
    assert (host.console.text, host.exits) == ("AbC", [])


def test_a_low_half_alone_counts_after_a_while() -> None:
    host = Host()
    host.store(TOHOST, 3)
    stored = host.now
    assert host.clock.next == stored + SETTLE
    host.clock.advance(stored + SETTLE - 1)
    assert host.exits == []
    host.clock.advance(stored + SETTLE)
    assert host.exits == [1]
    assert host.htif.next_event() is None


def test_zero_is_no_command() -> None:
    host = Host()
    host.tohost(0)
    host.clock.advance(5 * SETTLE)
    assert (host.exits, host.htif.ignored, host.word(FROMHOST)) == ([], 0, 0)


def test_neighbours_of_tohost_are_plain_memory() -> None:
    host = Host()
    host.store(TOHOST - 4, 1)
    host.store(TOHOST + 8, 1)
    assert host.htif.next_event() is None
    assert host.load(TOHOST + 8) == 1


def test_system_calls_write_and_exit() -> None:
    host = Host()
    host.bus.poke(TEXT, b"hello\n")
    assert host.call(64, 1, TEXT, 6) == 6
    assert host.console.text == "hello\n"
    assert host.call(64, 9, TEXT, 6) == (1 << 64) - 9
    assert host.call(64, 1, 0x10, 6) == (1 << 64) - 14
    assert host.call(63, 0, TEXT, 6) == (1 << 64) - 38
    assert host.exits == []
    assert host.call(64, 2, TEXT, 1) == 1
    assert host.call(93, 4) == 0
    assert host.exits == [4]
    assert host.console.text == "hello\nh"


def test_a_block_may_end_with_the_memory() -> None:
    host = Host()
    host.tohost(RAM + 0x10_0000 - 32)
    assert (host.htif.ignored, host.word(FROMHOST)) == (0, 1)


@pytest.mark.parametrize("command", [0x10, 2 << 56 | 1, 1 << 48 | 1, 1 << 56 | 7 << 48 | 65, RAM + 0x10_0000 - 24])
def test_an_unknown_command_is_ignored_and_counted(command: int) -> None:
    host = Host()
    host.tohost(command)
    assert (host.htif.ignored, host.exits, host.console.text, host.word(FROMHOST)) == (1, [], "", 0)


def test_symbols_outside_memory_are_refused() -> None:
    rig = Rig()
    with pytest.raises(PyvExtError, match="fromhost at 0x10 is not in RAM"):
        Htif(rig.bus, TOHOST, 0x10, Console(), rig.exits.append)
