"""Machine without its instructions, in the native subset: clock, bus, CLINT, PLIC, UART, interrupt lines, traps."""
