"""The commit log against Spike's: a golden log that Spike printed, and Spike itself where one is installed."""

from itertools import islice
from pathlib import Path

import pytest
from checkouts import RISCV_TESTS, build
from external_tools import GCC, need
from oracle_facts import SPIKE
from random_programs import CODE, DATA, random_program
from riscv_tests import Executables, programs
from spike import differences, elf_file, needs_spike, our_log, spike_log

from pyv_ext.isa import Isa

HERE = Path(__file__).parent
GOLDEN = HERE / "commit_log.golden"
ISA = "rv32imacu_zicsr_zifencei_zba_zbb_zbc_zbs_zicbom"
CYCLES = 200_000
SPIKES_MISA = "Spike's misa is writable, and has B for Zba, Zbb and Zbs together, which came after version 1.12"
DIFFERENT_HARTS = {
    "rv32mi-p-csr": SPIKES_MISA,
    "rv32mi-p-mcsr": SPIKES_MISA,
    "rv32mi-p-ma_fetch": SPIKES_MISA,
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(GCC)
    march = "rv32imac_zicsr_zifencei_zicbom"
    target = tmp_path_factory.mktemp("commits") / "commit_log.elf"
    return build(HERE / "commit_log.S", target, march, (), HERE / "spike.ld", "-Wl,-n")


def test_golden_lines(program: Path) -> None:
    assert our_log(program, ISA, CYCLES) == GOLDEN.read_text().splitlines(keepends=True)


@needs_spike
def test_the_golden_lines_are_spikes(program: Path) -> None:
    golden = GOLDEN.read_text().splitlines(keepends=True)
    assert list(islice(spike_log(program, ISA), len(golden))) == golden


@needs_spike
@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int, tmp_path: Path) -> None:
    isa = ISA if seed % 2 else ISA.replace("c", "", 1)
    made = random_program(Isa(isa), seed, 1500, SPIKE)
    path = elf_file(tmp_path / "random.elf", CODE, {CODE: made.code, DATA: made.data})
    end = f" {made.end:#010x} ("
    ours = our_log(path, isa, CYCLES)
    ours = ours[: next(number for number, line in enumerate(ours) if end in line)]
    assert len(ours) > 1500
    assert differences(ours, spike_log(path, isa)) == []


@needs_spike
@pytest.mark.skipif(bool(RISCV_TESTS.missing), reason=RISCV_TESTS.missing)
@pytest.mark.parametrize("name", [name for name in programs() if name not in DIFFERENT_HARTS])
def test_riscv_tests(name: str, riscv_tests: Executables) -> None:
    path = riscv_tests[name]
    ours = our_log(path, ISA, CYCLES)
    assert differences(ours, spike_log(path, ISA)) == []
