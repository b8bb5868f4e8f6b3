import pytest

from pyv_ext.bus.bus import Bus
from pyv_ext.bus.clock import Clock
from pyv_ext.bus.memory import Ram
from pyv_ext.devices.base import Register, RegisterDevice
from pyv_ext.errors import PyvExtError
from pyv_ext.protocols import BusMaster, Device
from pyv_ext.timing import CoreTiming


class Sample(RegisterDevice):
    name = "sample"
    size = 0x20
    registers = (
        Register("PLAIN", 0x00, reset=0x1234),
        Register("MASKED", 0x04, reset=0xF000_000F, mask=0x0000_00FF),
        Register("STATUS", 0x08, "ro", reset=7),
        Register("COMMAND", 0x0C, "wo"),
        Register("EVENTS", 0x10, "w1c", reset=0xFF, mask=0x0F),
    )


def rig() -> tuple[Bus, Sample]:
    clock = Clock()
    bus, device = Bus(clock, CoreTiming()), Sample()
    bus.add_device(0x4000, device)
    return bus, device


def test_it_is_a_device_without_interrupt_and_events() -> None:
    device: Device = Sample()
    assert (device.irq, device.next_event()) == (False, None)


@pytest.mark.parametrize(
    ("name", "offset", "reset", "after_ones", "after_zeros"),
    [
        ("PLAIN", 0x00, 0x1234, 0xFFFF_FFFF, 0),
        ("MASKED", 0x04, 0xF000_000F, 0xF000_00FF, 0xF000_0000),
        ("EVENTS", 0x10, 0xFF, 0xF0, 0xF0),
    ],
)
def test_access_modes(name: str, offset: int, reset: int, after_ones: int, after_zeros: int) -> None:
    bus, device = rig()
    assert bus.load(0x4000 + offset, 4, 1) == (reset, 1)
    assert bus.store(0x4000 + offset, 4, 0xFFFF_FFFF, 2) == 1
    assert device[name] == after_ones
    bus.store(0x4000 + offset, 4, 0, 3)
    assert device[name] == after_zeros


@pytest.mark.parametrize(
    ("offset", "size", "loads", "stores"),
    [(0x00, 4, True, True), (0x08, 4, True, False), (0x0C, 4, False, True), (0x14, 4, False, False)]
    + [(0x00, size, False, False) for size in (1, 2)],
)
def test_other_accesses_fault(offset: int, size: int, loads: bool, stores: bool) -> None:
    bus, _ = rig()
    assert bus.check(0x4000 + offset, size, False) == loads
    assert (bus.load(0x4000 + offset, size, 1) is not None) == loads
    assert bus.check(0x4000 + offset, size, True) == stores
    assert (bus.store(0x4000 + offset, size, 0, 2) is not None) == stores


def test_content_is_per_instance_and_32_bits_wide() -> None:
    one, other = Sample(), Sample()
    one["PLAIN"] = 1 << 32 | 5
    assert (one["PLAIN"], other["PLAIN"]) == (5, 0x1234)


@pytest.mark.parametrize(
    ("registers", "message"),
    [
        ((Register("A", 0), Register("B", 0)), "Wrong.B at offset 0x0: A is already there: move one"),
        ((Register("A", 2),), "Wrong.A at offset 0x2: must be a multiple of 4 below the device's size 0x8"),
        ((Register("A", 8),), "Wrong.A at offset 0x8: must be a multiple of 4 below the device's size 0x8"),
    ],
)
def test_a_wrong_map_is_refused_at_definition(registers: tuple[Register, ...], message: str) -> None:
    with pytest.raises(PyvExtError) as refusal:
        type("Wrong", (RegisterDevice,), {"name": "wrong", "size": 8, "registers": registers})
    assert str(refusal.value) == message


class Copier(RegisterDevice):
    """Copies the word at SOURCE to TARGET when GO is written."""

    name = "copier"
    size = 0x10
    registers = (Register("SOURCE", 0), Register("TARGET", 4), Register("GO", 8, "wo"))
    memory: BusMaster

    def connect(self, master: BusMaster) -> None:
        self.memory = master

    def on_write(self, name: str, value: int, now: int) -> None:
        self[name] = value
        data = self.memory.peek(self["SOURCE"], 4)
        if name == "GO" and data is not None:
            self.memory.poke(self["TARGET"], data)


def test_a_device_with_connect_gets_a_port_to_memory_whose_writes_drop_decoded_code() -> None:
    bus = Bus(Clock(), CoreTiming())
    bus.add_ram(Ram("dram", 0x8000_0000, 0x1000))
    bus.add_device(0x4000, Copier())
    bus.poke(0x8000_0100, b"abcd")
    written: list[tuple[int, int]] = []
    bus.on_code_write.append(lambda address, size: written.append((address, size)))
    bus.mark_code(0x8000_0200)
    for offset, value in ((0, 0x8000_0100), (4, 0x8000_0200), (8, 1)):
        bus.store(0x4000 + offset, 4, value, 1)
    assert bus.peek(0x8000_0200, 4) == b"abcd"
    assert written == [(0x8000_0200, 4)]
