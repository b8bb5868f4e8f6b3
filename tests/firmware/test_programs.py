"""Every shipped program in both modes: exit code 0; and non-zero when what it tests is broken on purpose."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from npu_device.abi.errors import TicketError
from npu_device.abi.instructions import PortReply
from npu_device.abi.opcodes import FullPolicy, TicketState
from npu_device.device import NpuDevice
from npu_device.front_end import fetch, registers, submissions
from npu_device.host.command_port import CommandPort
from npu_device.host.host_side import HostSide
from npu_device.host.pipeline import Pipeline
from npu_device.host.registers import RegisterFile
from pyv_ext.engines.core import StopReason
from pyv_npu.boot import shipped_programs
from pyv_npu.config import load
from pyv_npu.result import Result
from pyv_npu.workloads.firmware import run_program

MODES = ("loose", "tight")
PROGRAMS = sorted(shipped_programs())
QUICK = {"submit_latency": {"n": 40}}
"""Arguments that keep a program short."""


def run(program: str, mode: str, **settings: Any) -> Result[Any]:
    config = load(overrides={"npu.mode": mode, "run.max_cycles": 20_000_000, **settings}).config
    return run_program(config, program, QUICK.get(program, {}))


def test_all_programs_are_shipped() -> None:
    assert set(PROGRAMS) >= {
        "hello", "submit_latency", "gemm", "irq_completion", "fault_illegal", "fault_queue_full", "fault_descriptor",
        "fault_timeout", "fault_access", "fault_doorbell",
    }  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_program_succeeds(program: str, mode: str) -> None:
    result = run(program, mode)
    assert result.stop.reason is StopReason.EXIT, result.stop
    assert result.exit_code == 0, result.json["uart"]
    assert "FAIL" not in result.json["uart"]


@pytest.mark.parametrize("mode", MODES)
def test_a_small_queue_is_filled_too(mode: str) -> None:
    result = run("fault_queue_full", mode, **{"npu.queue.size": 4, "npu.queue.tight_size": 4})
    assert result.exit_code == 0, result.json["uart"]


# -- each feature broken on purpose ------------------------------------------------------------------------------


def ignore_custom(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Custom words do nothing instead of trapping."""
    return {"core.tight_off": "nop"}


def loose_decoding(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """TBAR takes reserved scopes."""
    monkeypatch.setattr(CommandPort, "tbar_legal", staticmethod(lambda immediate: True))
    monkeypatch.setattr(CommandPort, "tbar", lambda self, immediate, now: PortReply(0))
    return {}


def one_policy(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A full queue always says -NPU_EBUSY, whatever CTRL says."""
    original = CommandPort.enqcmd

    def enqcmd(self: CommandPort, *arguments: Any) -> Any:
        front = self._pipeline().front
        policy, front.policy = front.policy, FullPolicy.RETRY
        answer = original(self, *arguments)
        self._pipeline().front.policy = policy
        return answer

    monkeypatch.setattr(CommandPort, "enqcmd", enqcmd)
    return {}


def leave_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the NPU give native code of the core no entry points."""
    monkeypatch.setattr(Pipeline, "_update_link", lambda self: None)


def lost_descriptors(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The ring takes any doorbell: entries are overwritten."""
    original = RegisterFile.ring_doorbell
    leave_to_python(monkeypatch)

    def doorbell(self: RegisterFile, tail: int, cycle: int) -> None:
        ring = self._host.ring
        if (tail - ring.tail) % 2**32 > ring.size - ring.occupied:
            self._host.front.tail = tail
            self._host.pipeline.call(fetch.request_fetch, cycle)
        else:
            original(self, tail, cycle)

    monkeypatch.setattr(RegisterFile, "ring_doorbell", doorbell)
    return {"run.max_cycles": 2_000_000}


def skipped_descriptor(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The device forgets one descriptor of a full ring."""
    original = RegisterFile.ring_doorbell
    forgotten: list[int] = []
    leave_to_python(monkeypatch)

    def doorbell(self: RegisterFile, tail: int, cycle: int) -> None:
        original(self, tail, cycle)
        front = self._host.front
        if self._host.ring.full and not forgotten:
            forgotten.append(front.next_fetch)
            front.head, front.next_fetch = front.head + 1, front.next_fetch + 1

    monkeypatch.setattr(RegisterFile, "ring_doorbell", doorbell)
    return {"run.max_cycles": 3_000_000, "npu.queue.size": 8, "npu.queue.tight_size": 8}


def one_error_code(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Every error is reported as an unknown opcode."""
    original = Pipeline.call
    leave_to_python(monkeypatch)

    def call(self: Pipeline, function: Any, *arguments: int) -> int:
        answer = original(self, function, *arguments)
        if function is submissions.query_ticket and answer > 0:
            return TicketError.OPCODE
        if arguments[:1] == (registers.TICKET_STATUS,) and answer & 0xFF == TicketState.ERROR:
            return TicketState.ERROR | TicketError.OPCODE << 8
        return answer

    monkeypatch.setattr(Pipeline, "call", call)
    return {}


def instant_waits(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """TWAIT and the ticket registers say done at once."""
    monkeypatch.setattr(CommandPort, "twait", lambda self, *arguments: PortReply(0))
    original = HostSide.read_register
    leave_to_python(monkeypatch)

    def read_register(self: HostSide, offset: int, now: int) -> int:
        return TicketState.DONE if offset == registers.TICKET_STATUS else original(self, offset, now)

    monkeypatch.setattr(HostSide, "read_register", read_register)
    return {}


def any_access(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The registers take any access."""
    monkeypatch.setattr(NpuDevice, "accepts", lambda self, offset, size, write: True)
    monkeypatch.setattr(NpuDevice, "read", lambda self, offset, size, now: 0)
    return {}


def silent_line(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The interrupt line never rises."""
    monkeypatch.setattr(NpuDevice, "irq", False)
    return {}


def wrong_product(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """One element of each product is off by one."""
    from npu_device.operations.kernels import gemm

    original: Callable[..., np.ndarray[Any, Any]] = gemm.product

    def product(*arguments: Any, **named: Any) -> np.ndarray[Any, Any]:
        result = np.array(original(*arguments, **named))
        result.flat[0] += 1
        return result

    monkeypatch.setattr(gemm, "product", product)
    return {}


MUTATIONS = [
    ("fault_illegal", "loose", ignore_custom),
    ("fault_illegal", "tight", loose_decoding),
    ("fault_queue_full", "tight", one_policy),
    ("fault_queue_full", "loose", skipped_descriptor),
    ("fault_descriptor", "loose", one_error_code),
    ("fault_descriptor", "tight", one_error_code),
    ("fault_timeout", "loose", instant_waits),
    ("fault_timeout", "tight", instant_waits),
    ("fault_access", "loose", any_access),
    ("fault_access", "tight", any_access),
    ("fault_doorbell", "loose", lost_descriptors),
    ("irq_completion", "loose", silent_line),
    ("irq_completion", "tight", silent_line),
    ("gemm", "loose", wrong_product),
    ("gemm", "tight", wrong_product),
]


@pytest.mark.parametrize(("program", "mode", "mutate"), MUTATIONS, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_feature_is_noticed(
    program: str, mode: str, mutate: Callable[[pytest.MonkeyPatch], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(program, mode, **mutate(monkeypatch))
    assert result.exit_code != 0, result.json["uart"]
