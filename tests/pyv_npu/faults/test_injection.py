"""Injected faults, one by one: each acts where it says, is in the event stream, and leads to what it must."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import guest
import numpy as np
import pytest
from external_tools import GCC, PICOLIBC, needs
from native_forms import EARLY, Form
from work_count import lines

from npu_device.levels.explain import Blocker
from npu_device.memory.arrays import WriteSet
from npu_device.memory.region import make_region
from npu_device.trace.events import What
from npu_device.trace.records import joined
from pyv_ext.bus.memory import PAGE_BITS
from pyv_ext.devices.base import DeviceBase
from pyv_ext.engines.core import StopReason
from pyv_ext.protocols import Placed
from pyv_npu.cli.main import main
from pyv_npu.config import Config, load
from pyv_npu.errors import BadInputError, UsageError
from pyv_npu.faults.injection import Injection
from pyv_npu.faults.plan import ACTIONS, TRIGGERS, make_fault, read_plan
from pyv_npu.platform import Platform
from pyv_npu.result import Result
from pyv_npu.simulator import Simulator
from pyv_npu.studies import fault_outcomes
from pyv_npu.studies.fault_outcomes import Outcome, Verdict, evidence_of, judge
from pyv_npu.workloads.firmware import load as find
from pyv_npu.workloads.firmware import run_program
from pyv_npu.workloads.workload import Session

EXAMPLES = Path(__file__).resolve().parents[3] / "pyv_npu" / "examples"
N = {"n": 17, "phases": 31, "tile": 16}
"""Every phase, tiles with their transfers among them."""


def config(mode: str, timeout: int = 4000, **more: object) -> Config:
    return load([], None, {"npu.mode": mode, "driver.timeout": timeout, "run.max_cycles": 3_000_000, **more}).config


_references: dict[tuple[str, int], Result[Any]] = {}


def outcome(mode: str, *faults: Mapping[str, Any], timeout: int = 4000) -> tuple[Verdict, Result[Any]]:
    if (mode, timeout) not in _references:
        _references[mode, timeout] = run_program(config(mode, timeout), "submit_latency", N, Session(faults=()))
    plan = [make_fault(fault) for fault in faults]
    run = run_program(config(mode, timeout), "submit_latency", N, Session(faults=plan))
    return judge(evidence_of(_references[mode, timeout]), evidence_of(run)), run


def texts(run: Result[Any]) -> list[str]:
    return [one.text for one in fault_outcomes.record_of(run).recovered]


LOST_DOORBELL = {"at": {"doorbell": 16}, "do": "doorbell_lost"}


def test_a_driver_without_time_out_waits_for_ever_and_one_with_it_rings_again() -> None:
    found, run = outcome("loose", LOST_DOORBELL, timeout=0)
    assert found.outcome is Outcome.HANG and run.stop.reason is StopReason.LIMIT
    found, run = outcome("loose", LOST_DOORBELL)
    assert found.outcome is Outcome.RECOVERED and found.detected_by == ["time-out"]
    assert texts(run) == ["doorbell lost, rung again"]
    assert found.cycles_lost is not None and found.cycles_lost > 4000


def test_enqcmd_that_is_lost_is_submitted_again_by_the_driver_at_once() -> None:
    found, run = outcome("tight", LOST_DOORBELL)
    assert found.outcome is Outcome.RECOVERED and found.detected_by == ["answer"] and texts(run) == []
    ((since, again),) = fault_outcomes.record_of(run).retried
    assert 0 < again - since < 100
    assert run.counters is not None and run.counters["rejected"] == 1


ERROR, LATE, DOORBELL = "commands failed, submitted again", "no progress, waited on", "doorbell lost, rung again"
INTERRUPT = "interrupt lost, completions polled"
CASES: list[tuple[str, Mapping[str, Any], Outcome, Sequence[str]]] = [
    ("both", {"at": {"symbol": "npu_irq_enable"}, "do": "interrupt_lost"}, Outcome.RECOVERED, [INTERRUPT]),
    ("both", {"at": {"symbol": "npu_irq_enable"}, "do": "interrupt_late", "cycles": 1000}, Outcome.MASKED, []),
    ("both", {"at": {"symbol": "npu_irq_enable"}, "do": "interrupt_doubled"}, Outcome.MASKED, []),
    ("loose", {"at": {"doorbell": 16}, "do": "doorbell_late", "cycles": 3000}, Outcome.MASKED, []),
    ("loose", {"at": {"doorbell": 16}, "do": "doorbell_late", "cycles": 9000}, Outcome.RECOVERED, [DOORBELL]),
    ("loose", {"at": {"doorbell": 3}, "do": "doorbell_doubled", "cycles": 1}, Outcome.MASKED, []),
    ("both", {"at": {"opcode": "LOAD", "count": 5}, "do": "dma_late", "cycles": 8000}, Outcome.RECOVERED, [LATE]),
    ("both", {"at": {"opcode": "LOAD", "count": 5}, "do": "dma_error"}, Outcome.RECOVERED, [ERROR]),
    ("both", {"at": {"opcode": "LOAD", "count": 16}, "do": "dma_truncated"}, Outcome.DETECTED, []),
    ("both", {"at": {"command": 20}, "do": "unit_stuck", "cycles": 1500}, Outcome.MASKED, []),
    ("both", {"at": {"command": 20}, "do": "unit_stuck", "cycles": 0}, Outcome.RECOVERED,
     [LATE, "no progress, device reset", ERROR]),
    ("tight", {"at": {"cycle": 1000}, "do": "dram_slow", "factor": 20}, Outcome.MASKED, []),
    ("loose", {"at": {"command": 4}, "do": "queue_full", "cycles": 1000}, Outcome.MASKED, []),
    ("tight", {"at": {"command": 4}, "do": "queue_full", "cycles": 1000}, Outcome.RECOVERED, []),
    ("loose", {"at": {"cycle": 1000}, "do": "clock_ratio"}, Outcome.MASKED, []),
    ("both", {"at": {"command": 101}, "do": "flip_result", "bit": 7}, Outcome.DETECTED, []),
    ("both", {"at": {"command": 3}, "do": "flip_descriptor", "bit": 2}, Outcome.RECOVERED, [ERROR]),
    ("loose", {"at": {"symbol": "npu_irq_disable"}, "do": "flip_memory", "address": 0x5000_0000, "bit": 30},
     Outcome.DETECTED, []),
    ("tight", {"at": {"symbol": "npu_irq_disable"}, "do": "flip_register", "register": "ra", "bit": 31},
     Outcome.CRASH, []),
    ("loose", {"at": {"symbol": "npu_irq_enable"}, "do": "flip_csr", "csr": "mtvec", "bit": 30}, Outcome.CRASH, []),
    ("tight", {"at": {"address": "boot"}, "do": "bus_error"}, Outcome.CRASH, []),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["loose", "tight"])
@pytest.mark.parametrize(("modes", "fault", "expected", "driver"), CASES, ids=[case[1]["do"] for case in CASES])
def test_outcomes(mode: str, modes: str, fault: Mapping[str, Any], expected: Outcome, driver: Sequence[str]) -> None:
    if modes not in ("both", mode):
        pytest.skip(f"{fault['do']} is of {modes} mode")
    found, run = outcome(mode, fault)
    (injected,) = fault_outcomes.record_of(run).injected
    assert injected.fired, "acted"
    assert (found.outcome, texts(run)) == (expected, list(driver)), found
    assert run.events is not None
    events = joined(run.events.batches())
    acted = events[events["what"] == What.FAULT]
    assert acted["cycle"].tolist() == [firing.cycle for firing in injected.fired]


def test_without_faults_nothing_changes() -> None:
    """The machine that keeps records runs as the one that does not."""
    run, plain = (run_program(config("loose"), "submit_latency", N, Session(faults=one)) for one in ((), None))
    assert run.events is not None and plain.events is not None
    assert (run.cycles, run.events.hexdigest()) == (plain.cycles, plain.events.hexdigest())
    assert not np.isin(joined(plain.events.batches())["what"], [What.FAULT]).any()
    assert plain.core is not None and plain.core.record is None


class Counter(DeviceBase):
    """A device in Python."""

    name, size = "counter", 16
    reads = 0

    def accepts(self, offset: int, size: int, write: bool) -> bool:
        return True

    def read(self, offset: int, size: int, now: int) -> int:
        self.reads += 1
        return self.reads

    def write(self, offset: int, size: int, value: int, now: int) -> None:
        pass


def test_native_code_calls_devices_while_a_fault_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    Form("fast", EARLY).choose(monkeypatch)
    counter = Counter()
    platform = Platform(config("loose"), devices=[Placed(guest.DEVICE, counter)])
    platform.load(guest.polling(50_000))
    platform.inject({"at": {"cycle": 900_000}, "do": "interrupt_spurious", "cycles": 9})
    platform.run(until=10_000)
    told = list[int]()
    device_changed = platform.clock.device_changed

    def counted(number: int, cycle: int) -> None:
        told.append(cycle)
        device_changed(number, cycle)

    monkeypatch.setattr(platform.clock, "device_changed", counted)
    platform.run(until=100_000)
    assert counter.reads > 500 and len(told) < 50


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_a_fault_acts_in_its_cycle_though_no_device_is_accessed(engine: str) -> None:
    platform = Platform(config("loose", **{"core.engine": engine}))
    platform.load(guest.program(*guest.li(1, 9), guest.ENCODE("jal", imm=0)))
    injection = platform.inject({"at": {"pc": guest.RAM + 8}, "do": "interrupt_spurious", "cycles": 9})
    platform.run(until=40)
    assert injection.armed[0].fired and injection.is_finished


def machine(*code: int) -> Platform:
    """A platform with some instructions and an endless loop behind them."""
    platform = Platform(config("loose"))
    platform.load(guest.program(*code, guest.ENCODE("jal", imm=0)))
    return platform


def test_bits_are_those_that_the_faults_name() -> None:
    platform, address, when = machine(*guest.li(5, 9)), guest.RAM + 0x1000, {"cycle": 30}
    platform.inject(
        {"at": when, "do": "flip_memory", "address": address, "bit": 17},
        {"at": when, "do": "flip_register", "register": "t0", "bit": 4},
        {"at": when, "do": "flip_csr", "csr": "mscratch", "bit": 31},
    )
    before = platform.hart.csrs.read(0x340)
    platform.run(until=60)
    assert platform.bus.peek(address, 4) == bytes([0, 0, 1 << 1, 0])
    assert platform.hart.x[5] == 9 ^ 1 << 4 and platform.hart.csrs.read(0x340) == before ^ 1 << 31


def test_faults_are_over_when_the_last_of_them_is() -> None:
    platform = machine()
    spurious = {"at": {"cycle": 30}, "do": "interrupt_spurious", "cycles": 5}
    injection = platform.inject(spurious, {"at": {"doorbell": 1}, "do": "doorbell_lost"})
    platform.run(until=100)
    assert injection.armed[0].fired and not injection.is_finished, "a doorbell may come"
    injection = platform.inject(spurious | {"at": {"cycle": 120}})
    platform.run(until=200)
    assert injection.is_finished


def test_other_faults_end_those_before_them() -> None:
    platform = machine()
    platform.inject({"at": {"cycle": 30}, "do": "clock_ratio", "factor": 4})
    platform.run(until=100)
    slow = platform.clint.record.divider
    platform.inject()
    assert 4 * platform.clint.record.divider == slow
    page = platform.bus.rams[0].base >> PAGE_BITS
    address = [page << PAGE_BITS, (page << PAGE_BITS) + 3]
    platform.inject(
        {"at": {"address": address}, "do": "interrupt_spurious"}, {"at": {"doorbell": 1}, "do": "doorbell_lost"}
    )
    assert platform.bus.store_ok[page] == 0 and platform.npu.host.registers.injector is not None
    platform.inject()
    assert platform.bus.store_ok[page] == 1 and platform.npu.host.registers.injector is None


@pytest.mark.parametrize(("action", "at"), [("flip_ring", "doorbell"), ("flip_descriptor", "command")])
def test_a_bit_is_one_of_a_descriptor(action: str, at: str) -> None:
    assert make_fault({"at": {at: 1}, "do": action, "bit": 511}).values["bit"] == 511
    with pytest.raises(BadInputError, match="512"):
        make_fault({"at": {at: 1}, "do": action, "bit": 512})


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize(("name", "cause"), [("lw", 5), ("sw", 7)])
def test_an_access_is_answered_with_an_error_the_nth_time(engine: str, name: str, cause: int) -> None:
    """In a loop, which native code runs by itself until then."""
    address = guest.RAM + 0x2000
    platform = Platform(config("loose", **{"core.engine": engine}))
    access = guest.ENCODE("lw", rd=6, rs1=5, imm=8) if name == "lw" else guest.ENCODE("sw", rs1=5, rs2=6, imm=8)
    loop = access, guest.ENCODE("addi", rd=7, rs1=7, imm=1), guest.ENCODE("jal", imm=-8), guest.ENCODE("jal", imm=0)
    platform.load(guest.program(*guest.li(5, address), *loop))
    platform.hart.csrs.write(0x305, guest.RAM + 20)  # mtvec: the last instruction
    platform.run(until=2000)
    rounds = platform.hart.x[7]
    platform.inject({"at": {"address": [address + 10, address + 11], "count": 50}, "do": "bus_error"})
    platform.run(until=4000)
    assert (platform.hart.csrs.mcause, platform.hart.csrs.mtval) == (cause, address + 8)
    assert rounds + 49 <= platform.hart.x[7] <= rounds + 50


def test_equal_plans_give_equal_runs() -> None:
    fault = {"at": {"random": {"seed": 3, "rate": 0.05}}, "do": "doorbell_lost", "times": 10}
    runs = [outcome("loose", fault)[1] for _ in range(2)]
    assert len({run.events.hexdigest() for run in runs if run.events is not None}) == 1
    (injected,) = fault_outcomes.record_of(runs[0]).injected
    assert 2 <= len(injected.fired) <= 10


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_are_read(path: Path) -> None:
    assert read_plan(path, drawn=path.stem == "campaign")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("faults: [{do: doorbell_lots, at: {doorbell: 1}}]", "fault 1: do: 'doorbell_lots': must be one of"),
        ("faults: [{do: doorbell_lost, at: {dorbell: 1}}]", "got dorbell; did you mean doorbell?"),
        ("faults: [{do: doorbell_lost}]", "fault 1: at: must say when"),
        ("faults: [{do: doorbell_lost, at: {doorbell: 0}}]", "at: doorbell: 0: must be a whole number, 1.."),
        ("faults: [{do: doorbell_lost, at: {doorbell: 1, cycle: 2}}]", "must have one of"),
        ("faults: [{do: doorbell_lost, at: {cycle: 1, count: 2}}]", "count: cycle says how often by itself"),
        ("faults: [{do: doorbell_lost, at: {cycle: 1}, cycles: 2}]", "cycles: unknown key of doorbell_lost"),
        ("faults: [{do: flip_memory, at: {cycle: 1}, bit: 2}]", "address: is missing; flip_memory needs it"),
        (
            "faults: [{do: flip_register, at: {cycle: 1}, bit: 32, register: a0}]",
            "bit: 32: must be a whole number, 0..31",
        ),
        (
            "faults: [{do: flip_register, at: {cycle: 1}, bit: 3, register: a9}]",
            "register: 'a9': is none that there is",
        ),
        ("faults: [{do: bus_error, at: {cycle: 1}}]", "bus_error acts on an access"),
        ("faults: [{do: dma_error, at: {opcode: LAOD}}]", "did you mean LOAD?"),
        ("faults: [{do: dma_error, at: {random: {seed: 1, rate: 2}}}]", "rate 2: must be above 0"),
        ("faults: [3]", "fault 1: must be a table"),
        ("faults: []", "must be a list of 1 to"),
        ("fautls: []", "fautls: unknown key; did you mean faults?"),
        ("", "must be a list of 1 to"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInputError) as refused:
        read_plan(path)
    assert message in str(refused.value) and str(path) in str(refused.value)


def test_a_symbol_that_the_program_does_not_have_is_named() -> None:
    with pytest.raises(BadInputError, match="submit_latency has no such symbol"):
        outcome("loose", {"at": {"symbol": "nowhere"}, "do": "interrupt_spurious"})


def test_a_range_of_addresses_costs_what_there_is_of_memory_in_it() -> None:
    platform = Platform(config("loose"))
    platform.load(find("submit_latency"), N)
    platform.inject({"at": {"cycle": 1}, "do": "interrupt_spurious"})  # the first one has the NPU made
    fault = {"at": {"address": [0x9000_0000, 0x9000_0000 + (1 << 32)]}, "do": "interrupt_spurious"}
    assert lines(lambda: platform.inject(fault)) < 1000


def test_a_run_with_faults_takes_no_snapshot() -> None:
    platform = Platform(config("loose"))
    with pytest.raises(UsageError, match="load a program first"):
        platform.inject(LOST_DOORBELL)
    run = outcome("loose", LOST_DOORBELL)[1]
    assert run.core is not None
    platform.load(run.core.program, N)
    platform.inject(LOST_DOORBELL)
    with pytest.raises(UsageError, match="no snapshot of a run with injected faults"):
        platform.save()
    platform.inject()
    platform.save()


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_shows_fault_detection_recovery_and_cycles_lost(capsys: pytest.CaptureFixture[str]) -> None:
    line = [
        "run",
        "submit_latency",
        "--mode",
        "loose",
        "--arg",
        "n=24",
        "--faults",
        str(EXAMPLES / "lost_doorbell.yaml"),
    ]
    assert main(line) == 0
    out = capsys.readouterr().out
    assert "npu: doorbell lost, rung again" in out  # what the firmware says
    for text in ("outcome      recovered", "noticed by   time-out", "cycles lost", "doorbell_lost at doorbell 16"):
        assert text in out
    assert main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["faults"]
    assert found["outcome"] == "recovered" and found["cycles_lost"] > 10_000
    (fired,) = found["injected"][0]["fired"]
    assert fired["cycle"] < found["recovered"][0]["cycle"]


def test_the_command_shows_what_was_submitted_again_in_tight_mode(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["run", "submit_latency", "--arg", "n=24", "--faults", str(EXAMPLES / "lost_doorbell.yaml")]
    assert main(line) == 0
    out = capsys.readouterr().out
    for text in ("outcome      recovered", "noticed by   answer", "submission refused, submitted again, after "):
        assert text in out
    assert main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["faults"]
    (fired,), (entry,) = found["injected"][0]["fired"], found["recovered"]
    assert found["recoveries"] == 1 and entry["since"] == fired["cycle"] < entry["cycle"]


def test_a_fault_that_never_acts_fails_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text("faults: [{at: {doorbell: 999}, do: doorbell_lost}]")
    assert main(["run", "submit_latency", "--arg", "n=8", "--faults", str(path)]) == 65
    assert "fault 1 never acted: doorbell_lost at doorbell 999" in capsys.readouterr().err


def test_every_action_and_trigger_has_a_case() -> None:
    tried = [case[1] for case in CASES] + [LOST_DOORBELL]
    assert set(ACTIONS) - {one["do"] for one in tried} == {"interrupt_spurious", "status_lost", "flip_ring"}
    assert set(TRIGGERS) - {next(iter(one["at"])) for one in tried} == {"pc", "depth", "random"}


def test_the_page_has_every_action_trigger_and_outcome() -> None:
    page = (EXAMPLES.parents[1] / "docs" / "reliability.md").read_text(encoding="utf-8")
    for name, action in ACTIONS.items():
        takes = [f"`{key}`" + ("" if rule.default is None else f" ({rule.default})")
                 for key, rule in action.parameters.items()]  # fmt: skip
        assert f"| `{name}` | {', '.join(takes) or '-'} | {action.point} | {action.text} |" in page
    for name, text in [*((f"`{key}`", text) for key, text in TRIGGERS.items()), *fault_outcomes.TEXT.items()]:
        assert f"| {name} | {text} |" in page


def test_a_model_with_faults_in_python_and_its_report(tmp_path: Path) -> None:
    from toolchain.examples import EXAMPLES as MODELS

    model = tmp_path / "mlp.onnx"
    model.write_bytes(MODELS["mlp"]().SerializeToString())
    made = Simulator(model, mode="loose", faults=[{"at": {"command": 2}, "do": "dma_error"}]).run()
    found = made.json["faults"]
    assert found["outcome"] == "recovered" and found["detected_by"] == ["time-out", "ticket"]
    assert made.correct and made.json["npu"]["errors"] == 1
    page = made.report(tmp_path / "report").read_text(encoding="utf-8")
    assert "Injected faults" in page and "LOAD" not in found["injected"][0]["fired"][0]["what"]
    assert "commands failed, submitted again" in page
    assert ",FAULT," in (tmp_path / "report" / "timeline.csv").read_text()
    assert main(["run", "--replay", str(tmp_path / "report"), "--json"]) == 0
    with pytest.raises(UsageError, match="faults: act on the core's machine"):
        Simulator(model, level="IA_TIMING", faults=[{"at": {"command": 2}, "do": "dma_error"}])


def test_the_explanation_names_the_time_that_a_fault_took(tmp_path: Path) -> None:
    from toolchain.examples import EXAMPLES as MODELS

    model = tmp_path / "mlp.onnx"
    model.write_bytes(MODELS["mlp"]().SerializeToString())
    late = {"at": {"command": 2}, "do": "dma_late", "cycles": 7000}
    causes = [Simulator(model, mode="loose", faults=faults).run() for faults in ((), [late])]
    plain, held = (one._result.analysis for one in causes)
    assert plain is not None and held is not None
    assert Blocker.FAULT not in plain.explanation.causes
    assert 6000 < held.explanation.causes[Blocker.FAULT] <= 7100
    assert sum(held.explanation.causes.values()) == held.explanation.makespan


def test_plans_are_written_as_they_are_read() -> None:
    for case in CASES:
        fault = make_fault(case[1])
        assert make_fault(fault.plain) == fault
    once, again = ({"at": {"symbol": "main", "count": count}, "do": "interrupt_lost"} for count in (1, 2))
    assert [str(make_fault(fault).at) for fault in (once, again)] == ["symbol main", "symbol main, occurrence 2"]


PRINTS = """
#include "runtime.h"
{noise}
int main(void)
{{
    volatile uint32_t sum = 0;
    for (uint32_t i = 0; i < 64; i++) {{
        sum += i;
    }}
    __asm__ volatile("lw s1, %0\\n.globl summed\\nsummed: sw s1, %0" : "+m"(sum) : : "s1");
    print("sum %u, 0x%x in %u cycles\\n", (unsigned)sum, (unsigned)sum, (unsigned)cycles());
    return 0;
}}
"""


@needs(GCC, PICOLIBC)
@pytest.mark.parametrize(
    ("noise", "outcome"),
    [
        ("", "silent corruption"),
        ('NPU_NOISE("in # cycles");', "silent corruption"),
        ('NPU_NOISE("sum #, # in");', "masked"),
        ('NPU_NOISE("sum #, ##");', "silent corruption"),
        ('NPU_NOISE("sum #, # in");\nNPU_NOISE(".* in # cycles");', "masked"),
    ],
)
def test_output_that_differs_in_digits_only_is_another_result(
    noise: str, outcome: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless the program declares them as none; the text around them is literal."""
    (tmp_path / "sum.c").write_text(PRINTS.format(noise=noise))
    elf, plan = tmp_path / "sum.elf", tmp_path / "flip.yaml"
    assert main(["build", str(tmp_path / "sum.c"), "-o", str(elf)]) == 0
    plan.write_text("faults: [{do: flip_register, register: s1, bit: 4, at: {symbol: summed}}]")
    capsys.readouterr()
    assert main(["run", str(elf), "--faults", str(plan), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["uart"].startswith("sum 2032, 0x7f0 in ") and document["faults"]["outcome"] == outcome


def test_the_bit_of_a_result_has_31_bits() -> None:
    assert make_fault({"at": {"cycle": 1}, "do": "flip_result", "bit": (1 << 31) - 1}).do == "flip_result"
    with pytest.raises(BadInputError, match=r"bit: 2147483648: must be a whole number, 0\.\.2147483647"):
        make_fault({"at": {"cycle": 1}, "do": "flip_result", "bit": 1 << 31})


def test_a_fault_with_a_key_that_is_no_word_is_refused() -> None:
    with pytest.raises(BadInputError, match="must be a table of keys and values"):
        make_fault({"at": {"cycle": 1}, "do": "flip_result", 1: 2})


@pytest.mark.parametrize(("rows", "part"), [(1, b"ab"), (2, b"abcd"), (3, b"abcd")])
def test_a_truncated_result_ends_in_its_middle(rows: int, part: bytes) -> None:
    region = make_region(0x8000_0000, rows, 4, 16)
    data = np.frombuffer(b"abcdefghijkl"[: 4 * rows], np.uint8)
    command: Any = SimpleNamespace(result=WriteSet(((region, data),)))
    Injection._truncate(cast("Injection", None), command)
    ((short, result),) = command.result.writes
    assert result.tobytes() == part and (short.rows, short.row_bytes) == (max(1, rows // 2), 2 if rows == 1 else 4)
