"""Each target of `scripts/fuzz` with a few inputs; thousands in the slow suite."""

import random
import signal
from pathlib import Path

import fuzz_descriptors
import fuzz_targets
import pytest
from fuzz_inputs import FoundError, flipped, refused
from fuzz_targets import TARGETS, TooSlow, limited, run

from npu_device.abi.errors import TicketError
from pyv_npu.errors import BadInputError
from toolchain.errors import ToolchainError

FEW = {"descriptors": 60, "elf": 10, "command_lists": 30, "configurations": 60, "faults": 150, "onnx": 5, "mlir": 2}
MANY = {
    "descriptors": 20_000, "elf": 2_000, "command_lists": 5_000, "configurations": 2_000, "faults": 5_000, "onnx": 500,
    "mlir": 500,
}  # fmt: skip


@pytest.fixture(autouse=True)
def mlir_fuzzer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "toolchain" / "mlir"))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))


@pytest.mark.parametrize("target", TARGETS)
def test_a_few_inputs_lead_to_an_answer_or_a_clear_line(target: str, tmp_path: Path) -> None:
    tally = run(target, FEW[target], 1, tmp_path)
    assert tally.inputs == FEW[target] and tally.refused > 0
    assert tally.accepted > 0 or target in ("onnx", "mlir")


@pytest.mark.parametrize(
    ("target", "seed"),
    [
        ("onnx", 55),  # a Loop without its body
        ("onnx", 252),  # a tensor with more data than its shape has
        ("onnx", 72330),  # a name that is not UTF-8
        ("faults", 23),  # a list in the place of an opcode
    ],
)
def test_what_was_found_once_is_refused(target: str, seed: int, tmp_path: Path) -> None:
    assert run(target, 1, seed, tmp_path).refused == 1


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_many_inputs_lead_to_an_answer_or_a_clear_line(target: str, tmp_path: Path) -> None:
    tally = run(target, MANY[target], 1_000_000, tmp_path)
    assert tally.accepted > 0 and tally.refused > 0


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
