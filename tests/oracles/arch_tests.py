"""The programs of a riscv-arch-test checkout that a hart must pass, and the signature that each must leave.

Releases up to 2.x carry signatures made by the reference models. Later ones leave these to the user, so QEMU runs
the same executable; it performs misaligned accesses, hence the variant of a program that wants them to trap has a
decide in a 2.x checkout only (branch old-framework-2.x).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from checkouts import RISCV_ARCH_TEST, build
from qemu import Qemu

from pyv_ext.elf import Program

GROUPS = ("I", "M", "A", "C", "B", "Zifencei", "privilege")
FLOATING = {"F": "f", "D": "fd"}
"""The letters of floating point that the hart of a group has besides."""
MODEL = Path(__file__).parent / "arch_model"
_MISALIGNED = "hw_data_misaligned_support"
QEMU_MTVAL = "-DSET_REL_TVAL_MSK=0xB0F2"
"""The suite's list of causes whose mtval is an address, without those of which QEMU 7.2 makes something else than we:
breakpoints (0, which the privileged manual permits; references of 2.x hold the pc) and misaligned targets (the pc)."""
_NOT_COMPRESSED = "[^C]"
_EXTENSIONS = ("zicsr", "zifencei", "zba", "zbb", "zbc", "zbs")


class Setup(NamedTuple):
    """The hart on which a program runs."""

    compressed: bool
    misaligned: bool
    floating: str = ""
    xlen: int = 32

    @property
    def letters(self) -> str:
        return f"ima{self.floating}{'c' if self.compressed else ''}u"

    @property
    def isa(self) -> str:
        return "_".join((f"rv{self.xlen}{self.letters}", *_EXTENSIONS))

    def fits(self, condition: str) -> bool:
        """Whether a condition of RVTEST_CASE holds, such as "ISA:=regex(.*I.*C.*)"."""
        name, _, value = condition.strip().partition(":=")
        if name == _MISALIGNED:
            return value == str(self.misaligned)
        pattern = re.fullmatch(r"regex\((.*)\)", value)
        if name != "ISA" or pattern is None:
            raise ValueError(f"unknown condition {condition!r}")
        extensions = "_".join(name.capitalize() for name in _EXTENSIONS)
        return re.match(pattern[1], f"RV{self.xlen}{self.letters.upper()}{extensions}") is not None


class ArchTest(NamedTuple):
    """One program on one set-up."""

    source: Path
    setup: Setup

    @property
    def name(self) -> str:
        allowed = "-misaligned" if self.setup.misaligned else ""
        short = "" if self.setup.compressed else "-no-c"
        width = "rv64-" if self.setup.xlen > 32 else ""
        return f"{self.source.parent.parent.name}/{width}{self.source.stem}{allowed}{short}"

    def march(self) -> str:
        """The compiler's name of what the program says it needs."""
        needed = re.search(rf'RVTEST_ISA\("RV{self.setup.xlen}([A-Y]+)([^",]*)', self.source.read_text())
        assert needed, f"{self.source} has no RVTEST_ISA"
        named = {extension.lower() for extension in re.findall(r"Z[a-z]+", needed[2])} | {"zicsr", "zifencei"}
        return "_".join((f"rv{self.setup.xlen}{needed[1].lower()}", *sorted(named)))

    def build(self, folder: Path, *flags: str) -> Path:
        env = self.source.parents[3] / "env"
        target = folder / self.name.replace("/", "-")
        flen = {"f": ("-DFLEN=32",), "fd": ("-DFLEN=64",)}.get(self.setup.floating, ())
        defines = (f"-DXLEN={self.setup.xlen}", *flen, *self._defined())
        return build(self.source, target, self.march(), (MODEL, env), MODEL / "link.ld", *flags, *defines)

    def _defined(self) -> list[str]:
        return [f"-D{name}" for case in _cases(self.source) if case.fits(self.setup) for name in case.defines]

    @property
    def traps_misaligned(self) -> bool:
        """Whether the program is about misaligned accesses and its hart refuses them."""
        return _asks(_cases(self.source), _MISALIGNED) and not self.setup.misaligned

    @property
    def reference(self) -> Path | None:
        """The signature that the suite itself carries, with what lies behind it up to a multiple of four words."""
        path = self.source.parent.parent / "references" / f"{self.source.stem}.reference_output"
        return path if path.is_file() else None


class _Case(NamedTuple):
    """One RVTEST_CASE: under which conditions it takes part, and what it then defines."""

    conditions: tuple[str, ...]
    defines: tuple[str, ...]

    def fits(self, setup: Setup) -> bool:
        return all(map(setup.fits, self.conditions))


def _cases(source: Path) -> list[_Case]:
    cases = []
    for text in re.findall(r'^\s*RVTEST_CASE\([^"]*"([^"]*)"', source.read_text(), re.MULTILINE):
        parts = [part.strip() for part in text.lstrip("/ ").split(";")]
        conditions = tuple(part[len("check ") :] for part in parts if part.startswith("check "))
        defines = tuple(part[len("def ") :] for part in parts if part.startswith("def "))
        cases.append(_Case(conditions, defines))
    return cases


def _asks(cases: list[_Case], about: str) -> bool:
    return any(about in condition for case in cases for condition in case.conditions)


def arch_tests() -> list[ArchTest]:
    """What the checkout holds for our harts; nothing if there is no checkout."""
    folder = RISCV_ARCH_TEST.folder
    if folder is None:
        return []
    found = []
    for xlen, groups in ((32, (*GROUPS, *FLOATING)), (64, GROUPS)):
        suite = folder / RISCV_ARCH_TEST.marker.replace("32", str(xlen))
        sources = [source for group in groups for source in sorted((suite / group / "src").glob("*.S"))]
        found += [test for source in sources for test in _variants(source, xlen)]
    return found


def _variants(source: Path, xlen: int) -> Iterator[ArchTest]:
    """The program on the first hart that it fits, and on the others that it asks about; references know no others."""
    cases = _cases(source)
    floating = FLOATING.get(source.parent.parent.name, "")
    referenced = ArchTest(source, Setup(True, False, floating, xlen)).reference is not None
    found = 0
    for misaligned in (False, True) if _asks(cases, _MISALIGNED) and not referenced else (False,):
        for compressed in (True, False):
            setup = Setup(compressed, misaligned, floating, xlen)
            wanted = not found or (not referenced and (compressed or _asks(cases, _NOT_COMPRESSED)))
            if wanted and any(case.fits(setup) for case in cases):
                found += 1
                yield ArchTest(source, setup)


def qemu_signature(executable: Path, program: Program, setup: Setup) -> list[str]:
    """What the program leaves on QEMU."""
    begin, end = program.symbols["begin_signature"].address, program.symbols["end_signature"].address
    kernel = ("-kernel", str(executable))
    with Qemu(*kernel, compressed=setup.compressed, floating=setup.floating, xlen=setup.xlen) as machine:
        machine.start()
        machine.finish()
        data = machine.memory(begin, end - begin)
    return [f"{int.from_bytes(data[at : at + 4], 'little'):08x}" for at in range(0, len(data), 4)]
