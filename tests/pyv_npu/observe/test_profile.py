"""The profile: it adds up to the run exactly, and agrees with instruction log, GNU addr2line and the latency probe."""

import csv
import json
import subprocess
from collections import Counter
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import guest
import pytest
from external_tools import needs
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from shares import draws

from npu_device.abi.memory_map import NPU_BASE
from npu_device.abi.registers import REGISTERS
from pyv_ext.elf import Program
from pyv_ext.engines.core import Stop
from pyv_ext.tracing.instructions import INTERRUPT, InstructionStep
from pyv_npu.boot import find_program
from pyv_npu.config import load
from pyv_npu.observe.instruments import Instruments
from pyv_npu.observe.latency.rows import Reason
from pyv_npu.observe.profile.profile import Activity
from pyv_npu.observe.profile.stacks import INTERRUPT as HANDLERS
from pyv_npu.observe.profile.stacks import TRAP
from pyv_npu.observe.profile.tables import ProgramProfile
from pyv_npu.platform import Platform
from pyv_npu.result import Result
from pyv_npu.workloads.firmware import run_program
from pyv_npu.workloads.workload import Session

WFI, MRET = 0x1050_0073, 0x3020_0073
SMALL = {"n": 3, "tile": 16}


@dataclass(frozen=True)
class Ran:
    """A run with its profile and its instructions."""

    result: Result[Any]
    profiled: ProgramProfile
    steps: list[InstructionStep]

    def spent(self, activity: Activity) -> int:
        return sum(count for charge, count in self.profiled.profile.cycles.items() if charge.activity is activity)


def run(program: str | Program, arguments: dict[str, int] | None = None, **keys: object) -> Ran:
    watch = Instruments(profile=True, instructions=True)

    def drive(platform: Platform) -> Stop:
        with watch.on(platform):
            return platform.run()

    config = load(overrides={name.replace("__", "."): value for name, value in keys.items()}).config
    result = run_program(config, program, arguments or {}, Session(drive=drive))
    assert watch.profiled is not None
    assert watch.log is not None
    return Ran(result, watch.profiled, list(watch.log))


@cache
def shipped(mode: str) -> Ran:
    return run("submit_latency", {**SMALL, "phases": 1 | 2 | 4}, npu__mode=mode)


def check_sums(ran: Ran) -> None:
    """Every form of the profile has the cycles of the run."""
    cycles, profiled = ran.result.cycles, ran.profiled
    counts = profiled.profile.cycles
    assert all(count >= 0 for count in counts.values())
    assert counts.total() == cycles
    assert profiled.profile.instructions.total() == ran.result.json["instret"]
    for shares in (profiled.functions(), profiled.lines()):
        assert sum(share.cycles for share in shares) == cycles
        assert all(sum(share.by_activity.values()) == share.cycles for share in shares)
        assert sum(share.instructions for share in shares) == ran.result.json["instret"]
    folded = [line.rpartition(" ") for line in profiled.folded().splitlines()]
    assert sum(int(count) for _, _, count in folded) == cycles
    assert len({stack for stack, _, _ in folded}) == len(folded)
    document = json.loads(profiled.speedscope("x"))
    frames = len(document["shared"]["frames"])
    for profile in document["profiles"]:
        assert sum(profile["weights"]) == profile["endValue"] == cycles
        assert len(profile["weights"]) == len(profile["samples"])
        assert all(0 <= frame < frames for sample in profile["samples"] for frame in sample)
    rows = list(csv.DictReader(StringIO(profiled.csv())))
    assert sum(int(row[activity.value]) for row in rows for activity in Activity) == cycles


@settings(max_examples=draws(6), deadline=None, phases=[Phase.explicit, Phase.generate])  # shrinking takes minutes
@given(
    mode=st.sampled_from(["loose", "tight"]),
    phases=st.integers(1, 63),
    preset=st.sampled_from(["soc-axi", "pyv", "ibex", "pcie"]),
    cut=st.one_of(st.none(), st.integers(1, 60_000)),
)
def test_the_cycles_are_those_of_the_run(mode: str, phases: int, preset: str, cut: int | None) -> None:
    watch = Instruments(profile=True, instructions=True)

    def drive(platform: Platform) -> Stop:
        with watch.on(platform):
            return platform.run()

    config = load(preset=preset, overrides={"npu.mode": mode, "run.max_cycles": cut}).config
    result = run_program(config, "submit_latency", {**SMALL, "phases": phases}, Session(drive=drive))
    assert watch.profiled is not None
    check_sums(Ran(result, watch.profiled, []))


@pytest.mark.parametrize("program", ["irq_completion", "fault_illegal"])
def test_traps_and_interrupts_add_up(program: str) -> None:
    ran = run(program)
    check_sums(ran)
    profile = ran.profiled.profile
    assert profile.interrupts == sum(step.trap == INTERRUPT for step in ran.steps)
    assert profile.traps == sum(step.trap not in (0, INTERRUPT) for step in ran.steps)
    assert profile.interrupts or profile.traps


@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_handler_and_wfi_are_those_of_the_instructions(mode: str) -> None:
    ran = shipped(mode)
    handler = wfi = 0
    inside = False
    for step in ran.steps:
        inside |= step.trap == INTERRUPT
        if inside:
            handler += step.end - step.start
        elif step.word == WFI:
            wfi += step.end - step.start
        inside &= step.word != MRET or step.trap != 0
    wfi += ran.result.cycles - ran.steps[-1].end  # type: ignore[operator]  # the last one never retires
    assert (ran.spent(Activity.HANDLER), ran.spent(Activity.WFI)) == (handler, wfi)
    assert handler


# -- lines, inlined functions and stacks -------------------------------------------------------------------------------


@cache
def addr2line(path: Path, addresses: tuple[int, ...]) -> dict[int, list[tuple[str, str]]]:
    """Address -> (function, file:line), the innermost first, as GNU addr2line says."""
    words = "\n".join(map(hex, addresses))
    command = ["riscv64-unknown-elf-addr2line", "-e", str(path), "-f", "-i", "-a"]
    out = subprocess.run(command, input=words, capture_output=True, text=True, check=True).stdout
    found: dict[int, list[tuple[str, str]]] = {}
    names: list[str] = []
    for line in out.splitlines():
        if line.startswith("0x"):
            names = []
            address = int(line, 16)
            found[address] = []
        elif names:
            found[address].append((names.pop(), line.partition(" (discriminator")[0]))
        else:
            names = [line]
    return found


@needs("riscv64-unknown-elf-addr2line")
@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_lines_and_inlined_functions_are_those_of_addr2line(mode: str) -> None:
    ran = shipped(mode)
    path = Path(find_program("submit_latency"))
    spent: Counter[int] = Counter()
    for step in ran.steps:
        spent[step.pc] += step.end - step.start
    spent[ran.steps[-1].pc] += 0
    told = addr2line(path, tuple(sorted(spent)))
    by_line: Counter[str] = Counter()
    for pc, count in spent.items():
        by_line[told[pc][0][1]] += count
        inner = [name for name, _ in told[pc][-2::-1]]
        assert list(ran.profiled.program.inlined.at(pc)) == inner
    mine: Counter[str] = Counter()
    for share in ran.profiled.lines():
        assert share.line is not None
        mine[str(share.line)] += share.cycles
    last = ran.result.cycles - ran.steps[-1].end  # type: ignore[operator]
    changed = {line: (count, by_line[line]) for line, count in mine.items() if count != by_line[line]}
    assert [count - other for count, other in changed.values()] == ([last] if last else [])
    assert {line for line, count in mine.items() if count} >= {line for line, count in by_line.items() if count}


def jumps(path: Path, mnemonics: tuple[str, ...], register: str) -> dict[int, int]:
    """Address of each direct jump that links this register -> its target, as GNU objdump says."""
    command = ["riscv64-unknown-elf-objdump", "-d", "-M", "no-aliases", str(path)]
    found = {}
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        words = line.split()
        if len(words) > 3 and words[2] in mnemonics and (words[2].startswith("c.") or words[3].startswith(register)):
            found[int(words[0].rstrip(":"), 16)] = int(words[3].removeprefix(register), 16)
    return found


@needs("riscv64-unknown-elf-objdump")
@pytest.mark.parametrize("mode", ["loose", "tight"])
def test_each_caller_calls_the_next(mode: str) -> None:
    ran = shipped(mode)
    program, stacks = ran.profiled.program, ran.profiled.profile.stacks
    path = Path(find_program("submit_latency"))
    targets = jumps(path, ("jal", "c.jal"), "ra,")
    tails = set(jumps(path, ("jal", "c.j"), "zero,").values())
    checked = 0
    for charge in ran.profiled.profile.cycles:
        sites = stacks.sites(charge.stack)
        if not sites:
            continue
        for site, following in zip(sites, [*sites[1:], charge.pc], strict=True):
            if site in targets and following != TRAP:
                called, holds = program.function_at(targets[site]), program.function_at(following)
                assert called is not None
                assert holds is not None
                jumped = holds.address in tails or called.name == "trap_interrupt"  # it jumps to what a register holds
                assert called.name == holds.name or jumped
                checked += called.name == holds.name
    assert checked > 100
    assert {stack[0] for stack, count in ran.profiled.stacks().items() if count} == {"_start", "[interrupt]"}


# -- activities --------------------------------------------------------------------------------------------------------

ENCODE = guest.ENCODE
STATUS, IRQ_ACK = (
    next(register.offset for register in REGISTERS if register.name == name) for name in ("COMPLETED", "IRQ_ACK")
)


def looping(body: list[int], count: int) -> Program:
    """`count` times the body, which may use x1, the address of the NPU, and x4 to x6."""
    words = [*guest.li(1, NPU_BASE), *guest.li(2, count), *body, ENCODE("addi", rd=2, rs1=2, imm=-1)]
    words.append(ENCODE("bne", rs1=2, rs2=0, imm=-4 * (len(body) + 1)))
    return guest.program(*words, *guest.exit_code(0))


def test_a_loop_that_finds_the_same_polls() -> None:
    ran = run(looping([ENCODE("lw", rd=4, rs1=1, imm=STATUS), ENCODE("add", rd=5, rs1=5, rs2=4)], 5))
    check_sums(ran)
    loads = [step for step in ran.steps if step.pc == guest.RAM + 16]
    assert len(loads) == 5
    assert ran.spent(Activity.POLLING) == loads[-1].end - loads[0].end
    assert ran.spent(Activity.MMIO) >= loads[0].end - loads[0].start


def test_a_loop_that_writes_a_device_does_not_poll() -> None:
    body = [ENCODE("lw", rd=4, rs1=1, imm=STATUS), ENCODE("sw", rs1=1, rs2=0, imm=IRQ_ACK)]
    ran = run(looping(body, 5))
    check_sums(ran)
    assert ran.spent(Activity.POLLING) == 0
    words = {step.word for step in ran.steps if step.pc in (guest.RAM + 16, guest.RAM + 20)}
    accesses = sum(step.end - step.start for step in ran.steps if step.word in words or step.word & 0x7F == 0x23)
    assert ran.spent(Activity.MMIO) == accesses


def test_a_loop_over_memory_does_not_poll() -> None:
    ran = run(looping([*guest.li(6, guest.RAM), ENCODE("lw", rd=4, rs1=6, imm=0)], 5))
    check_sums(ran)
    assert ran.spent(Activity.POLLING) == 0


def test_a_stall_in_enqcmd_is_a_wait_for_room() -> None:
    ran = run("submit_latency", {"n": 12, "tile": 32, "phases": 8, "warmup": 0}, npu__mode="tight",
              npu__queue__command_size=2, npu__queue__full_policy="stall")  # fmt: skip
    check_sums(ran)
    waited = sum(
        s.reasons.get(Reason.RETRY, 0) + s.reasons.get(Reason.FULL_WAIT, 0) for s in ran.result.latency.accepted
    )
    assert ran.spent(Activity.QUEUE) == waited > 0


def test_handlers_have_a_stack_of_their_own() -> None:
    ran = shipped("tight")
    stacks = ran.profiled.profile.stacks
    for charge, count in ran.profiled.profile.cycles.items():
        if stacks.root(charge.stack) == HANDLERS and count:
            assert charge.activity is Activity.HANDLER
