"""The programs of riscv-tests that a hart must pass: every one that the checkout lists in the suites below."""

import re
from pathlib import Path

from checkouts import RISCV_TESTS, build

SUITES = ("ui", "um", "ua", "uc", "si", "mi", "uzba", "uzbb", "uzbc", "uzbs")
NARROW_SUITES = ("uf", "ud")
"""Those for registers of 32 bits only."""
MARCH = "g"
"""What the suite's own Makefile compiles with; the bit-manipulation suites add theirs."""


def programs(xlen: int = 32) -> list[str]:
    """The names in the checkout's Makefile fragments for a width of registers, such as rv32ui-p-add."""
    folder = RISCV_TESTS.folder
    if folder is None:
        return []
    found = []
    for suite in (*SUITES, *(NARROW_SUITES if xlen == 32 else ())):
        fragment = (folder / "isa" / f"rv{xlen}{suite}" / "Makefrag").read_text().replace("\\\n", " ")
        listed = re.search(r"_sc_tests\s*=(.*)", fragment)
        assert listed, f"rv{xlen}{suite}/Makefrag lists no tests"
        found += [f"rv{xlen}{suite}-p-{name}" for name in listed[1].split()]
    return found


class Executables:
    """Builds each program once, into `folder`: in its environment for physical memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._built: dict[str, Path] = {}

    def __getitem__(self, name: str) -> Path:
        if name not in self._built:
            checkout = RISCV_TESTS.folder
            assert checkout is not None
            suite, _, test = name.split("-", 2)
            march = f"{suite[:4]}{MARCH}" + (f"_{suite[5:]}" if suite[4:].startswith("uz") else "")
            env, macros = checkout / "env" / "p", checkout / "isa" / "macros" / "scalar"
            source = checkout / "isa" / suite / f"{test}.S"
            self._built[name] = build(source, self._folder / name, march, (env, macros), env / "link.ld")
        return self._built[name]
