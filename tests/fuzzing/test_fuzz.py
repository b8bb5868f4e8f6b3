"""Each target of `scripts/fuzz` with a few inputs; thousands in the slow suite."""

import random
import signal
from pathlib import Path

import fuzz_descriptors
import fuzz_snapshots
import fuzz_targets
import pytest
from fuzz_inputs import FoundError, flipped, refused
from fuzz_targets import TARGETS, TooSlow, limited, run

from npu_device.abi.errors import TicketError
from pyv_npu.errors import BadInputError
from pyv_npu.snapshot import Snapshot
from toolchain.errors import ToolchainError

FEW = {"descriptors": 60, "elf": 10, "command_lists": 30, "configurations": 60, "faults": 150, "onnx": 40, "mlir": 2,
       "snapshots": 6, "inputs": 60, "traces": 60, "records": 40, "devices": 12, "yaml": 60, "json": 60,
       "results": 40, "gdb": 40, "assembler": 60}  # fmt: skip
MANY = dict.fromkeys(TARGETS, 20000) | {"devices": 300}
"""Each night."""


@pytest.fixture(autouse=True)
def helpers_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = Path(__file__).parents[1]
    for folder in ("toolchain/mlir", "oracles", "pyv_npu", "."):
        monkeypatch.syspath_prepend(str(tests / folder))


@pytest.mark.parametrize("target", TARGETS)
def test_a_few_inputs_lead_to_an_answer_or_a_clear_line(target: str, tmp_path: Path) -> None:
    tally = run(target, FEW[target], 1, tmp_path)
    assert tally.inputs == FEW[target] and tally.refused > 0
    assert tally.accepted > 0 or target in ("mlir", "records")


def test_a_list_in_the_place_of_an_opcode_is_refused(tmp_path: Path) -> None:
    assert run("faults", 1, 23, tmp_path).refused == 1


def test_a_wait_goes_on_where_a_run_ends_at_the_last_event(tmp_path: Path) -> None:
    """TWAIT would look again in the cycle of the last completion, which is the one to which the first run goes."""
    assert run("snapshots", 1, 1_000_353, tmp_path).accepted == 1


def test_a_channel_forgets_the_end_of_its_last_transfer(tmp_path: Path) -> None:
    assert run("snapshots", 1, 9_004_514, tmp_path).accepted


def test_an_access_of_timed_dram_in_cycle_2_to_the_62_ends(tmp_path: Path) -> None:
    assert run("devices", 1, 1_000_255, tmp_path).accepted


@pytest.mark.nightly
@pytest.mark.parametrize("target", TARGETS)
def test_many_inputs_lead_to_an_answer_or_a_clear_line(target: str, tmp_path: Path) -> None:
    tally = run(target, MANY[target], 1_000_000, tmp_path)
    assert tally.refused > 0 and (tally.accepted > 0 or target == "records")


def test_inputs_are_made_again_from_their_seeds(tmp_path: Path) -> None:
    assert run("faults", 40, 7, tmp_path) == run("faults", 40, 7, tmp_path)


@pytest.mark.parametrize("error", [KeyError("x"), MemoryError(), OSError(12, "no memory"), BadInputError("")])
def test_what_is_no_clear_line_is_found(error: Exception) -> None:
    with pytest.raises(FoundError):
        refused(error)
    assert refused(BadInputError("x.yaml: wrong; correct it")) and refused(ToolchainError("no compiler"))


def test_an_input_that_takes_too_long_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> bool:
        signal.raise_signal(signal.SIGVTALRM)  # as the timer does when the time is up
        return True

    monkeypatch.setitem(fuzz_targets.TARGETS, "faults", slow)
    with pytest.raises(FoundError, match="faults, seed 3: TooSlow: more than 20 CPU seconds"):
        run("faults", 1, 3, tmp_path)
    with limited():
        assert flipped(b"\0" * 64, random.Random(1)) != b"\0" * 64
    assert issubclass(TooSlow, BaseException)


def test_commands_of_encoded_caches_are_executed_and_refused_by_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_descriptors, "ENCODED_SHARE", 1)
    device = fuzz_descriptors.Device()
    accepted = sum(device.take(random.Random(seed)) for seed in range(200))
    codes = {entry.code for entry in device.device.error_log}
    assert accepted > 40 and codes >= {TicketError.KV_BLOCK, TicketError.KV_DATA, TicketError.POSITION}


def test_a_device_that_does_something_else_than_numpy_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sequential  # tests/oracles

    monkeypatch.setattr(sequential.Sequential, "execute", lambda self, descriptor, block: True)
    with pytest.raises(FoundError, match=r"devices, seed \d+: FoundError: .* (other bytes from 0x|command \d+ of)"):
        run("devices", 10, 1, tmp_path)


@pytest.mark.parametrize("mode", ["tight", "loose"])
@pytest.mark.parametrize("with_fault", [False, True])
def test_a_list_that_is_saved_anywhere_goes_on_as_if_it_had_not_been(
    mode: str, with_fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another machine, on any engine: events, memory, counters, tickets, and what a later fault does."""
    monkeypatch.setattr(fuzz_snapshots, "FAULT_SHARE", int(with_fault))
    made = [fuzz_snapshots.cut(random.Random(f"{mode} {number}"), mode) for number in range(8 if with_fault else 2)]
    assert any(one.acted for one in made) == with_fault
    assert any(one.in_flight for one in made), "commands are in flight where it is saved"


@pytest.mark.parametrize("part", [("counters", "noc_bytes"), ("front_end", "irq_status"), ("pipeline", "taken")])
def test_a_snapshot_that_loses_something_is_found(part: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def lossy(content: bytes) -> Snapshot:
        snapshot = read(content)
        state = snapshot.state["npu"]
        for name in part[:-1]:
            state = state[name]
        state[part[-1]] = 0
        return snapshot

    read = Snapshot.from_bytes
    monkeypatch.setattr(Snapshot, "from_bytes", lossy)
    with pytest.raises((FoundError, BadInputError)):
        for number in range(4):
            fuzz_snapshots.cut(random.Random(number), "loose")
