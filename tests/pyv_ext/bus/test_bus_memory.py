"""Memory as others than the hart see it: up to its last byte, and code in it."""

import pytest

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import PAGE, Ram
from pyv_ext.machine.state import LINE
from pyv_ext.timing import CoreTiming

LOW, HIGH = 0x1000_0000, 0x8000_0000


@pytest.fixture
def bus() -> Bus:
    made = Bus(Clock(), CoreTiming())
    for base in (HIGH, LOW):
        made.add_ram(Ram(f"ram at {base:#x}", base, PAGE))
        made.poke(base, bytes(range(256)) * (PAGE // 256))
    return made


@pytest.mark.parametrize("base", [LOW, HIGH])
def test_bytes_are_seen_from_the_first_to_the_last(bus: Bus, base: int) -> None:
    assert bus.peek(base, 2) == b"\0\1"
    assert bus.peek(base + PAGE - 3, 3) == b"\xfd\xfe\xff"
    assert bus.peek(base, PAGE) == bytes(range(256)) * (PAGE // 256)
    assert bus.peek(base + PAGE, 0) == b""
    for address, size in ((base - 1, 1), (base - 1, 2), (base + PAGE - 3, 4), (base + PAGE, 1), (base, PAGE + 1)):
        assert bus.peek(address, size) is None


def test_what_is_seen_is_a_copy(bus: Bus) -> None:
    seen = bus.peek(HIGH, 4)
    bus.poke(HIGH, b"abcd")
    assert seen == b"\0\1\2\3"


@pytest.mark.parametrize("base", [LOW, HIGH])
@pytest.mark.parametrize("line", [0, 3, PAGE // LINE - 1])
def test_writes_are_told_that_touch_a_line_of_code(bus: Bus, base: int, line: int) -> None:
    told: list[tuple[int, int]] = []
    bus.on_code_write.append(lambda address, size: told.append((address, size)))
    begin = base + line * LINE
    bus.mark_code(begin + 8)
    touching = [(begin, 1), (begin + LINE - 1, 1), (begin, LINE)]
    touching += [(begin - 1, 2)] if line else []
    touching += [(begin + LINE - 1, 2)] if begin + LINE < base + PAGE else []
    for address, size in touching:
        bus.memory_changed(address, size)
        bus.poke(address, bytes(size))
    assert told == [each for each in touching for _ in range(2)]
    for address, size in ((begin - 1, 1), (begin - LINE, LINE), (begin + LINE, 1), (begin, 0)):
        if base <= address and address + size <= base + PAGE:
            bus.memory_changed(address, size)
    assert len(told) == 2 * len(touching)
