"""Firmware with an L2: without coherence it must flush, in every engine; with it, or without an L2, it need not."""

from pathlib import Path

import pytest
from external_tools import GCC, PICOLIBC, needs

from npu_device.trace.events import What
from npu_device.trace.records import joined
from pyv_ext.cores import DEFAULT_ENGINE
from pyv_npu.config import load
from pyv_npu.platform import Platform
from toolchain.gnu import build_program

NOTHING, REGISTER, LINES = 0, 1, 2
ISA = "rv32imac_zicsr_zifencei_zba_zbb_zbs_zicbom"
ENGINES = ("reference", "fast")

pytestmark = needs(GCC, PICOLIBC)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_program(tmp_path_factory.mktemp("l2") / "l2_probe.elf", [Path(__file__).parent / "l2_probe.c"])


def run(
    probe: Path, flush: int, mode: str = "tight", engine: str = DEFAULT_ENGINE, **l2: object
) -> tuple[Platform, str]:
    settings = {f"npu.l2.{key}": value for key, value in l2.items()}
    config = load(overrides={"npu.mode": mode, "core.engine": engine, "core.isa": ISA, **settings}).config
    platform = Platform(config)
    platform.load(probe, {"flush": flush})
    stop = platform.run()
    return platform, "pass" if stop.code == 0 else "fail"


def stale(platform: Platform) -> int:
    return int((joined(platform.events.batches())["what"] == What.STALE).sum())


@pytest.mark.parametrize("mode", ["tight", "loose"])
@pytest.mark.parametrize(("flush", "outcome"), [(NOTHING, "fail"), (REGISTER, "pass"), (LINES, "pass")])
def test_without_coherence_firmware_must_flush(probe: Path, flush: int, outcome: str, mode: str) -> None:
    platform, how = run(probe, flush, mode, enabled=True, coherence="none")
    assert how == outcome, platform.console.text
    assert (stale(platform) > 0) == (outcome == "fail")
    assert platform.npu.counters.to_json()["l2"]["stale"] >= stale(platform)


@pytest.mark.parametrize("l2", [{"enabled": True}, {"enabled": False, "coherence": "none"}])
def test_else_it_need_not(probe: Path, l2: dict[str, object]) -> None:
    platform, how = run(probe, NOTHING, **l2)
    assert how == "pass", platform.console.text
    assert not stale(platform)


@pytest.mark.parametrize("flush", [NOTHING, LINES])
def test_all_engines_see_the_same(probe: Path, flush: int) -> None:
    seen = set()
    for engine in ENGINES:
        platform, _ = run(probe, flush, engine=engine, enabled=True, coherence="none")
        seen.add((platform.events.hexdigest(), platform.cycle, platform.console.text))
    assert len(seen) == 1


def test_a_snapshot_holds_what_dram_does_not(probe: Path) -> None:
    """Saved while the L2 has bytes that DRAM lacks, and restored in another machine: the run ends equally."""
    whole, _ = run(probe, NOTHING, enabled=True, coherence="none")
    config = whole.config
    ends = []
    for cycle in range(0, whole.cycle, whole.cycle // 6):
        first = Platform(config)
        first.load(probe, {"flush": NOTHING})
        first.run(cycle)
        second = Platform(config)
        second.load(probe, {"flush": NOTHING})
        second.restore(first.save())
        second.run()
        ends.append((second.events.hexdigest(), second.cycle, second.console.text))
    assert set(ends) == {(whole.events.hexdigest(), whole.cycle, whole.console.text)}
