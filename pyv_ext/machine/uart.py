"""Registers of the UART 16550A in the native subset. Transmission takes no time."""

from pyv_ext.machine.state import UartRecord

RBR_THR, IER, IIR_FCR, LCR, MCR, LSR, MSR, SCR = range(8)
"""Offsets, named after the registers of a read and a write. With LCR.DLAB set, 0 and 1 are the divisor latch."""
IER_THRE = 2
IIR_NONE, IIR_THRE, IIR_RX, IIR_TIMEOUT, IIR_FIFO = 0x01, 0x02, 0x04, 0x0C, 0xC0
FCR_ENABLE, FCR_CLEAR_RX, FCR_CLEAR_TX = 1, 2, 4
LCR_DLAB = 0x80
MCR_LOOP = 0x10
LSR_DR, LSR_THRE_TEMT = 0x01, 0x60
MSR_CONNECTED = 0xB0
"""DCD, DSR and CTS: the other end is connected."""


def line(uart: UartRecord) -> bool:
    """Return the level of the interrupt line."""
    return (uart.ier & 1 != 0 and uart.count > 0) or (uart.ier & IER_THRE != 0 and uart.thre)


def cause(uart: UartRecord) -> int:
    """Return the interrupt cause of highest priority; FCR[7:6] is the trigger level of the receiver."""
    if uart.ier & 1 and uart.count:
        level = uart.fcr >> 6
        trigger = (14 if level == 3 else 8) if level > 1 else (4 if level else 1)
        return IIR_RX if uart.count >= trigger else IIR_TIMEOUT
    return IIR_THRE if uart.ier & IER_THRE and uart.thre else IIR_NONE


def identity(uart: UartRecord) -> int:
    """Return IIR, without the effect of a read."""
    return cause(uart) | (IIR_FIFO if uart.fcr & FCR_ENABLE else 0)


def receive(uart: UartRecord) -> int:
    """Take the next character; 0: the receiver is empty."""
    if not uart.count:
        return 0
    value = uart.received[0]
    uart.count -= 1
    for index in range(uart.count):
        uart.received[index] = uart.received[index + 1]
    return value


def modem(uart: UartRecord) -> int:
    """Return MSR: the modem lines, or in loopback the outputs."""
    if uart.mcr & MCR_LOOP:
        return (uart.mcr & 0xC) << 4 | (uart.mcr & 1) << 5 | (uart.mcr & 2) << 3
    return MSR_CONNECTED


def read_uart(uart: UartRecord, offset: int) -> int:
    """Read a register; RBR takes a character, IIR an interrupt of the transmitter."""
    if offset == RBR_THR:
        return uart.divisor & 0xFF if uart.lcr & LCR_DLAB else receive(uart)
    if offset == IER:
        return uart.divisor >> 8 if uart.lcr & LCR_DLAB else uart.ier
    if offset == IIR_FCR:
        shown = identity(uart)
        if shown & 0xF == IIR_THRE:
            uart.thre = False
        return shown
    if offset == LCR:
        return uart.lcr
    if offset == MCR:
        return uart.mcr
    if offset == LSR:
        return LSR_THRE_TEMT | (LSR_DR if uart.count else 0)
    return modem(uart) if offset == MSR else uart.scr


def control_fifo(uart: UartRecord, value: int) -> None:
    """Write FCR. An emptied transmitter interrupts, as in QEMU; without FCR[0] the other bits are not programmed."""
    clear = value if value & FCR_ENABLE else 0
    if (value ^ uart.fcr) & FCR_ENABLE:
        clear = FCR_CLEAR_RX | FCR_CLEAR_TX
    if clear & FCR_CLEAR_RX:
        uart.count = 0
    if clear & FCR_CLEAR_TX:
        uart.thre = True
    uart.fcr = value & 0xC1 if value & FCR_ENABLE else 0


def write_uart(uart: UartRecord, offset: int, value: int) -> None:
    """Store to a register. A character is appended to `sent`; with `looped`, its last character is looped back."""
    latch = uart.lcr & LCR_DLAB
    if offset == RBR_THR:
        if latch:
            uart.divisor = uart.divisor & 0xFF00 | value
        else:
            uart.thre = True
            uart.looped = uart.mcr & MCR_LOOP != 0
            uart.sent.append(value)
    elif offset == IER:
        if latch:
            uart.divisor = uart.divisor & 0xFF | value << 8
        else:
            if value & ~uart.ier & IER_THRE:
                uart.thre = True
            uart.ier = value & 0x0F
    elif offset == IIR_FCR:
        control_fifo(uart, value)
    elif offset == LCR:
        uart.lcr = value
    elif offset == MCR:
        uart.mcr = value & 0x1F
    else:
        uart.scr = value
