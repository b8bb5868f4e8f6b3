"""Port at which the scheduler on the core accepts requests and submits steps (`on_core`): a device beside the NPU.

A step begins with the write of STEP and lasts `step_cycles` of its composition; then the port interrupts. The port
reads the firmware's decisions from memory at the begin of a step, as a row of the ledger.
"""

import struct
from collections import deque
from collections.abc import Sequence

from pyv_ext.devices.base import Register, RegisterDevice
from pyv_ext.protocols import BusMaster, Reply
from pyv_npu.serving.requests import Arrivals, Request
from pyv_npu.serving.scheduler import Entry
from pyv_npu.serving.server import LedgerRow, ScheduledTokens, StepCycles, SwapCycles

PORT_BASE, PORT_SOURCE = 0x4800_0000, 12
"""Address, and source at the PLIC; firmware/apps/serve.c receives both as arguments."""
RUN_MAX, SLOTS, BLOCKS_MAX = 1024, 8192, 1 << 18
"""Capacities of the firmware."""
DONE, OVER = 1, 2
"""Bits of STATUS: the step has ended; no more requests will arrive."""
_HEAD = struct.Struct("<10I")
_CHUNK = struct.Struct("<3I")
_SWAP = struct.Struct("<2I")
REASONS = ("schedule", "allocate", "submit", "wait")


class ServerPort(RegisterDevice):
    """Port with a record of its traffic. Its time begins with the firmware's first read of a register."""

    name = "server"
    size = 0x1000
    registers = (
        Register("ARRIVED", 0x00, "ro"), Register("ID", 0x04, "ro"), Register("PROMPT", 0x08, "ro"),
        Register("ANSWER", 0x0C, "ro"), Register("POP", 0x10, "wo"), Register("STEP", 0x14, "wo"),
        Register("STATUS", 0x18, "ro"), Register("ACK", 0x1C, "wo"), Register("ANSWERED", 0x20, "wo"),
        Register("SLEEP", 0x24, "wo"),
    )  # fmt: skip

    def __init__(
        self, arrivals: Arrivals, refused: Sequence[Request], step_cycles: StepCycles, swap_cycles: SwapCycles
    ) -> None:
        """`refused`: requests that are refused on arrival."""
        super().__init__()
        self._arrivals, self._step_cycles, self._swap_cycles = arrivals, step_cycles, swap_cycles
        self._refused = {request.id for request in refused}
        self._inbox: deque[Request] = deque()
        self._epoch: int | None = None
        self._ends: int | None = None
        self._done = self._sleeping = False
        self._master: BusMaster | None = None
        self.served: dict[int, Entry] = {}
        self.ledger: list[LedgerRow] = []
        self.arrivals_by_step: list[list[int]] = [[]]
        """Requests that the firmware accepted before each step, and after the last."""
        self.reasons: list[tuple[int, ...]] = []
        """Core cycles of each step by REASONS; the wait precedes the step."""
        self._chunks = ScheduledTokens()

    def connect(self, master: BusMaster) -> None:
        """Connect the port to memory."""
        self._master = master

    @property
    def irq(self) -> bool:
        return self._done or (self._sleeping and bool(self._inbox))

    def next_event(self) -> int | None:
        following = self._arrivals.next_cycle()
        times = [] if self._ends is None else [self._ends]
        if following is not None and self._epoch is not None:
            times.append(self._epoch + following)
        return min(times, default=None)

    def advance(self, now: int) -> None:
        if self._ends is not None and self._ends <= now:
            self._ends, self._done = None, True
        if self._epoch is not None:
            self._arrive(now - self._epoch)

    def _arrive(self, now: int) -> None:
        while batch := self._arrivals.pop_until(now):
            for cycle, request in batch:
                if request.id in self._refused:
                    self._arrivals.answered(request.id, cycle)
                else:
                    self._inbox.append(request)
                    self.served[request.id] = Entry(request, cycle)

    def on_read(self, name: str, now: int) -> Reply:
        if self._epoch is None:
            self._epoch = now
            self._arrive(0)
        first = self._inbox[0] if self._inbox else None
        match name:
            case "ARRIVED":
                return Reply(len(self._inbox))
            case "STATUS":
                over = not self._inbox and self._arrivals.next_cycle() is None
                return Reply(DONE * self._done | OVER * over)
            case "ID":
                return Reply(first.id if first else 0)
            case "PROMPT":
                return Reply(first.input_toks if first else 0)
            case _:
                return Reply(first.output_toks if first else 0)

    def on_write(self, name: str, value: int, now: int) -> None:
        at = now - (self._epoch or 0)
        match name:
            case "POP" if self._inbox:
                self.arrivals_by_step[-1].append(self._inbox.popleft().id)
            case "STEP":
                self._begin(value, now, at)
            case "ACK":
                if self._done:
                    self._end(at)
                self._done = self._sleeping = False
            case "ANSWERED":
                row = self.ledger[-1]
                self.ledger[-1] = row._replace(finished=(*row.finished, value))
                self._arrivals.answered(value, at)
                self._arrive(at)
            case "SLEEP":
                self._sleeping = True

    def _begin(self, address: int, now: int, at: int) -> None:
        """Read the firmware's decisions. Invalid decisions fail later, in the comparison with the host's scheduler."""
        count, out, swap_count, running, waiting, blocks, *reasons = _HEAD.unpack(self._words(address, _HEAD.size))
        count, out, swap_count = (min(number, RUN_MAX) for number in (count, out, swap_count))
        chunks = self._words(address + _HEAD.size, count * _CHUNK.size)
        self._chunks = ScheduledTokens(
            (request, tokens, context) for request, tokens, context in _CHUNK.iter_unpack(chunks) if tokens
        )
        lists_address = address + _HEAD.size + RUN_MAX * _CHUNK.size
        preempted = self._words(lists_address, 4 * out)
        swapped = tuple(_SWAP.iter_unpack(self._words(lists_address + 4 * RUN_MAX, swap_count * _SWAP.size)))
        cycles = self._step_cycles(self._chunks.chunks) if self._chunks else 1
        swap = sum(self._swap_cycles(tokens, out > 0) for _, tokens in swapped)
        cycles += swap
        self._ends = now + cycles
        self.reasons.append(tuple(reasons))
        self.arrivals_by_step.append([])
        preempted_ids = struct.unpack(f"<{out}I", preempted)
        row = LedgerRow(at, at + cycles, self._chunks, preempted_ids, (), running, waiting, blocks, swapped, swap)
        self.ledger.append(row)

    def _words(self, address: int, size: int) -> bytes:
        data = self._master.peek(address, size) if self._master is not None and size else b""
        return data if data is not None and len(data) == size else bytes(size)

    def _end(self, at: int) -> None:
        """End the step when the firmware acknowledges it: its tokens reach users in this cycle."""
        row = self.ledger[-1]
        for request, tokens, context in row.scheduled:
            record = self.served.get(request)
            if record is None:
                continue
            if record.first_scheduled < 0:
                record.first_scheduled = row.start
            record.control += sum(self.reasons[-1][:3])
            num_tokens = record.request.input_toks + len(record.tokens_at)
            if context + tokens == num_tokens:
                record.tokens_at.append(at)
