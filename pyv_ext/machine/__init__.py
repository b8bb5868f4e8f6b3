"""The machine beside the instructions, in the native subset: clock, bus, CLINT, PLIC, UART, lines to mip."""
