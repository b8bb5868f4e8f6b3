"""The boot ROM: a jump to the program, and the information block that the platform hands to firmware."""

from pyv_ext.memory import PAGE, Ram

INFO_OFFSET = 0x20
"""Where the boot information lies in the ROM; at the program's entry a1 holds its address."""


def boot_rom(base: int, entry: int, info: bytes) -> Ram:
    """A ROM at `base` whose code sets a0 = hart id and a1 = address of `info`, and jumps to `entry`."""
    upper = (entry + 0x800) & 0xFFFF_F000  # the offset of jalr is signed
    lower = (entry - upper) & 0xFFF
    code = (
        0x0000_0597,  # auipc a1, 0
        0x0205_8593,  # addi  a1, a1, INFO_OFFSET
        0xF140_2573,  # csrr  a0, mhartid
        0x0000_02B7 | upper,  # lui   t0, upper
        0x0002_8067 | lower << 20,  # jr    lower(t0)
    )
    image = b"".join(word.to_bytes(4, "little") for word in code).ljust(INFO_OFFSET, b"\0") + info
    rom = Ram("rom", base, -(-len(image) // PAGE) * PAGE, writable=False)
    rom.u8[: len(image)] = image
    return rom
