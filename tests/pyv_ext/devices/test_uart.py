import pytest
from device_rig import PLIC, UART, UART_SOURCE, Rig

from pyv_ext.devices.interrupts import MEIP
from pyv_ext.devices.uart import Console, Uart
from pyv_ext.engines.engine import Engine
from pyv_ext.gdb.debugger import Debugger
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Isa
from pyv_ext.timing import CoreTiming

DATA, IER, IIR, LCR, MCR, LSR, MSR, SCR = range(8)
FCR = IIR
RX, THRE = 1, 2


def read(uart: Uart, offset: int) -> int:
    assert uart.accepts(offset, 1, False)
    return uart.read(offset, 1, 0)


def write(uart: Uart, offset: int, value: int) -> None:
    assert uart.accepts(offset, 1, True)
    uart.write(offset, 1, value, 0)


def test_output_is_captured_and_shown_piece_by_piece() -> None:
    shown: list[bytes] = []
    uart = Uart(Console(shown.append))
    sent = b"h\xc3\xa9\xff"
    for byte in sent:
        assert read(uart, LSR) == 0x60, "always ready"
        write(uart, DATA, byte)
    assert uart.text == "hé\N{REPLACEMENT CHARACTER}"
    assert b"".join(shown) == uart.console.data == sent


def test_input_comes_in_order_and_data_ready_follows_it() -> None:
    uart = Uart()
    uart.feed(b"ab")
    uart.feed(b"c")
    got = bytearray()
    while read(uart, LSR) & 1:
        got.append(read(uart, DATA))
    assert got == b"abc"
    assert read(uart, DATA) == 0
    assert read(uart, LSR) == 0x60


def test_reset_values() -> None:
    uart = Uart()
    assert [read(uart, offset) for offset in range(8)] == [0, 0, 0x01, 0, 0, 0x60, 0xB0, 0]


def test_the_divisor_latch_hides_data_and_ier() -> None:
    uart = Uart()
    write(uart, IER, 0x0F)
    write(uart, LCR, 0x83)
    write(uart, DATA, 0x34)
    write(uart, IER, 0x12)
    assert (read(uart, DATA), read(uart, IER)) == (0x34, 0x12)
    write(uart, LCR, 0x03)
    assert read(uart, IER) == 0x0F
    assert uart.text == ""


def test_received_data_interrupts_until_it_is_read() -> None:
    uart = Uart()
    write(uart, IER, RX)
    assert not uart.irq
    uart.feed(b"x")
    assert uart.irq
    assert read(uart, IIR) == 0x04
    assert uart.irq, "reading IIR does not clear received data"
    read(uart, DATA)
    assert not uart.irq
    assert read(uart, IIR) == 0x01


@pytest.mark.parametrize(("fcr", "trigger"), [(0x01, 1), (0x41, 4), (0x81, 8), (0xC1, 14)])
def test_fifo_below_its_trigger_level_is_a_timeout(fcr: int, trigger: int) -> None:
    uart = Uart()
    write(uart, FCR, fcr)
    write(uart, IER, RX)
    uart.feed(bytes(trigger + 1))
    causes = []
    while read(uart, LSR) & 1:
        causes.append(read(uart, IIR))
        read(uart, DATA)
    assert causes == [0xC4, 0xC4] + [0xCC] * (trigger - 1)


def test_transmitter_empty_interrupts_once_per_byte_and_when_enabled() -> None:
    uart = Uart()
    write(uart, IER, THRE)
    assert uart.irq
    assert read(uart, IIR) == 0x02
    assert not uart.irq, "reading IIR clears it"
    write(uart, DATA, 0x41)
    assert uart.irq, "the byte is gone at once"
    write(uart, IER, 0)
    assert not uart.irq
    write(uart, IER, THRE)
    assert uart.irq


def test_received_data_hides_transmitter_empty_and_leaves_it_pending() -> None:
    uart = Uart()
    uart.feed(b"x")
    write(uart, IER, RX | THRE)
    assert read(uart, IIR) == 0x04
    read(uart, DATA)
    assert read(uart, IIR) == 0x02
    assert read(uart, IIR) == 0x01


def test_switching_or_clearing_the_fifo_drops_what_it_holds() -> None:
    uart = Uart()
    uart.feed(bytes(range(40)))
    write(uart, FCR, 0x01)  # drops the one byte in the receiver without FIFO
    write(uart, FCR, 0x03)  # drops sixteen
    assert read(uart, DATA) == 17


def test_without_the_fifo_its_other_control_bits_do_nothing() -> None:
    uart = Uart()
    uart.feed(b"ab")
    write(uart, IER, RX)
    write(uart, FCR, 0xC6)
    assert read(uart, IIR) == 0x04, "no trigger level of 14, and nothing was cleared"
    assert read(uart, DATA) == ord("a")
    assert read(uart, IIR) == 0x04


def test_loopback_returns_what_is_sent_and_the_modem_lines() -> None:
    uart = Uart()
    for mcr, msr in ((0x11, 0x20), (0x12, 0x10), (0x14, 0x40), (0x18, 0x80), (0x1F, 0xF0), (0x00, 0xB0)):
        write(uart, MCR, mcr)
        assert read(uart, MSR) == msr
    write(uart, MCR, 0x10)
    write(uart, DATA, 0x5A)
    assert read(uart, DATA) == 0x5A
    assert uart.text == ""


def test_only_bytes_of_the_eight_registers_are_accepted() -> None:
    rig = Rig()
    assert rig.load(UART, 4) is None
    assert rig.load(UART, 2) is None
    assert rig.load(UART + 8, 1) is None
    assert not rig.store(UART + LSR, 0, 1)
    assert not rig.store(UART + MSR, 0, 1)
    assert rig.store(UART + SCR, 0xA5, 1)
    assert rig.load(UART + SCR, 1) == 0xA5


def test_host_input_reaches_mip_through_the_plic() -> None:
    rig = Rig()
    rig.store(PLIC + 4 * UART_SOURCE, 1)
    rig.store(PLIC + 0x2000, 1 << UART_SOURCE)
    rig.store(UART + IER, RX, 1)
    assert rig.mip == 0
    rig.uart.feed(b"!")
    rig.clock.changed(rig.clock.now)
    assert rig.mip == MEIP
    assert rig.load(PLIC + 0x20_0004) == UART_SOURCE
    assert rig.mip == 0


def test_a_debugger_sees_the_registers_and_changes_nothing() -> None:
    """Whatever the UART holds: what is peeked is what a read gives, and the next peek shows the same."""
    uart = Uart()
    write(uart, FCR, 1)
    write(uart, IER, RX | THRE)
    uart.feed(b"xy")
    write(uart, SCR, 0x5A)
    before = uart.state()
    words = [uart.peek(offset, 4, 0) for offset in (0, 4, 8)]
    assert words[2] is None
    assert uart.state() == before
    shown = b"".join(word.to_bytes(4, "little") for word in words if word is not None)
    assert shown[DATA] == ord("x")
    assert [shown[offset] for offset in (IER, IIR, LCR, MCR, LSR, MSR, SCR)] == [
        read(uart, offset) for offset in (IER, IIR, LCR, MCR, LSR, MSR, SCR)
    ]
    write(uart, LCR, 0x83)
    write(uart, DATA, 0x34)
    write(uart, IER, 0x12)
    assert uart.peek(0, 2, 0) == 0x1234


def test_gdb_reads_them() -> None:
    rig = Rig()
    rig.uart.feed(b"k")
    hart = Hart(Isa("rv32im"), CoreTiming(), rig.bus.clock.records)
    debugger = Debugger(Engine(hart, rig.bus))
    assert debugger.read(UART, 8)[0] == ord("k")
    assert debugger.read(UART + LSR, 1) == b"\x61"
    assert rig.uart.text == "" and rig.uart.read(DATA, 1, 0) == ord("k")
