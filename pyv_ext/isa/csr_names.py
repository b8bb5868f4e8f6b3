"""Names of control and status registers (RISC-V privileged manual, version 1.12, "CSR Listing").

Unprivileged, supervisor, machine and trigger registers; other registers are written as numbers.
"""


def _number_names(base: int, name: str, numbers: range, suffix: str = "") -> dict[int, str]:
    """Name the registers `name`n + `suffix` at `base` + n."""
    return {base + n: f"{name}{n}{suffix}" for n in numbers}


_EVENTS = range(3, 32)

NAMES: dict[int, str] = {
    0x001: "fflags",
    0x002: "frm",
    0x003: "fcsr",
    0x100: "sstatus",
    0x104: "sie",
    0x105: "stvec",
    0x106: "scounteren",
    0x10A: "senvcfg",
    0x140: "sscratch",
    0x141: "sepc",
    0x142: "scause",
    0x143: "stval",
    0x144: "sip",
    0x14D: "stimecmp",
    0x15D: "stimecmph",
    0x180: "satp",
    0x300: "mstatus",
    0x301: "misa",
    0x302: "medeleg",
    0x303: "mideleg",
    0x304: "mie",
    0x305: "mtvec",
    0x306: "mcounteren",
    0x30A: "menvcfg",
    0x310: "mstatush",
    0x31A: "menvcfgh",
    0x320: "mcountinhibit",
    **_number_names(0x320, "mhpmevent", _EVENTS),
    0x340: "mscratch",
    0x341: "mepc",
    0x342: "mcause",
    0x343: "mtval",
    0x344: "mip",
    0x34A: "mtinst",
    0x34B: "mtval2",
    **_number_names(0x3A0, "pmpcfg", range(16)),
    **_number_names(0x3B0, "pmpaddr", range(64)),
    0x747: "mseccfg",
    0x757: "mseccfgh",
    0x7A0: "tselect",
    0x7A1: "tdata1",
    0x7A2: "tdata2",
    0x7A3: "tdata3",
    0x7A4: "tinfo",
    0x7A5: "tcontrol",
    0x7A8: "mcontext",
    0xB00: "mcycle",
    0xB02: "minstret",
    **_number_names(0xB00, "mhpmcounter", _EVENTS),
    0xB80: "mcycleh",
    0xB82: "minstreth",
    **_number_names(0xB80, "mhpmcounter", _EVENTS, "h"),
    0xC00: "cycle",
    0xC01: "time",
    0xC02: "instret",
    **_number_names(0xC00, "hpmcounter", _EVENTS),
    0xC80: "cycleh",
    0xC81: "timeh",
    0xC82: "instreth",
    **_number_names(0xC80, "hpmcounter", _EVENTS, "h"),
    0xF11: "mvendorid",
    0xF12: "marchid",
    0xF13: "mimpid",
    0xF14: "mhartid",
    0xF15: "mconfigptr",
}

ADDRESSES: dict[str, int] = {name: address for address, name in NAMES.items()}
