"""Programs for harts with F and D: what start-up code, trap entries and libraries do for f registers."""

from collections.abc import Callable
from pathlib import Path

import pytest
from external_tools import GCC, PICOLIBC, needs
from native_forms import NATIVE_FORMS, Form
from shares import slow
from test_runtime import on_qemu
from test_single_shot import BENCH, floating

from pyv_npu.config import load
from pyv_npu.platform import Platform
from toolchain.gnu import build_program

HERE = Path(__file__).parent
FORMS = (Form("reference"), *NATIVE_FORMS)

pytestmark = needs(GCC, PICOLIBC)

Run = Callable[[Path, Form], tuple[int | None, str]]


@pytest.fixture(params=["rv32imafdc", *slow("rv32imf")])
def march(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def run(march: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run(ELF, form) -> (exit code, console)` on a hart of that instruction set."""

    def ran(elf: Path, form: Form) -> tuple[int | None, str]:
        with monkeypatch.context() as patch:
            form.choose(patch)
            config = load(overrides={"core.isa": f"{march}_zicsr_zifencei", "core.engine": form.engine}).config
            platform = Platform(config)
            platform.load(elf, {"rounds": 400} if "bench" in elf.name else {})
            code = platform.run(until=40_000_000).code
        return code, platform.console.text

    return ran


def test_handlers_may_compute_with_f_registers(march: str, run: Run, tmp_path: Path) -> None:
    elf = build_program(tmp_path / "probe.elf", [HERE / "float_probe.c"], march=march)
    code, text = on_qemu(elf)
    one, other, flags, again, _ = text.split()
    assert (code, one, flags) == (0, other, again)
    for form in FORMS:
        code, ours = run(elf, form)
        assert code == 0, ours
        assert ours.split()[:4] == [one, other, flags, again], form
        assert ours.split()[4] == "often"


def test_a_program_in_f_registers_computes_what_software_does(march: str, run: Run, tmp_path: Path) -> None:
    elf = build_program(tmp_path / "bench.elf", [BENCH / "bench_float.c"], march=march, flags=["-ffp-contract=off"])
    for form in FORMS:
        assert run(elf, form) == (0, f"float {floating(400):x}\n"), form
