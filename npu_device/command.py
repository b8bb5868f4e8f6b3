"""A command: what a valid descriptor asks for, and how far the device is with it."""

from dataclasses import dataclass, field
from typing import Any

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import Opcode
from npu_device.descriptor_error import DescriptorError
from npu_device.effect import Effect
from npu_device.events import FRONTEND, Kind
from npu_device.held import HeldSum
from npu_device.macro.base import Macro
from npu_device.operands import Matrix
from npu_device.region import Region

Place = tuple[Kind, int, int]
"""(kind, cluster, index + 1 within the cluster or 0 for any)."""


@dataclass(slots=True, eq=False)
class Command:
    """Made by `decode.Decoder`; the device fills in ticket and number and everything below them."""

    descriptor: Descriptor
    opcode: Opcode
    kind: Kind | None
    """Which kind of unit executes it; None: no unit, it starts and completes at once when it is `oldest` (NOP,
    BARRIER)."""
    stream: int
    prio: int
    inputs: tuple[Matrix, ...] = ()
    output: Matrix | None = None
    holds: bool = False
    """GEMM_T: the sum stays in the accumulator and `output` is not written."""
    reads_output: bool = False
    """WHERE: elements that are not selected stay."""
    macro: Macro | None = None
    """Macro form: what it does; `inputs` and `output` are empty then."""
    workspace: Region | None = None
    """Macro form: scratchpad that it uses and leaves as it was."""

    ticket: int = 0
    number: int = 0
    """Acceptance number: the age. Smaller is older."""
    status_address: int | None = None
    """Where the status word goes, if it is written back."""
    affinity: int = 0
    """Index of the unit + 1 within its cluster; 0: any."""
    held: HeldSum | None = None
    """The sum that it adds to or keeps."""
    held_regions: tuple[Region, ...] = ()

    accepted: int = 0
    """Cycle of acceptance (t2)."""
    hazards: int = 0
    """Older commands that must end or retire before it may start."""
    hazards_clear: int = 0
    """Since when there is none."""
    gates: int = 0
    """Barriers that must be lifted before it may start."""
    gates_clear: int = 0
    oldest: bool = False
    """Nothing older of its stream is in flight: it may retire."""
    after_end: list[Any] = field(default_factory=list)
    """Who waits for this one to end, for `hazards`."""
    after_retire: list[Any] = field(default_factory=list)
    place: Place | None = None
    """Which units may execute it."""
    unit: int = FRONTEND
    """Code of the unit that executes it."""
    ended: bool = False
    result: Effect | None = None
    failure: DescriptorError | None = None
    """Why it could not start: it ends at once, without a unit, and its ticket becomes an error."""

    @property
    def ready(self) -> bool:
        """Hazards and barriers let it start."""
        return not self.hazards and not self.gates

    def reads(self) -> tuple[Region, ...]:
        """Memory, and held sums, that it looks at when it starts. What it also writes it need not name here: a writer
        waits for everyone."""
        if self.macro is not None:
            regions = tuple(one.region for one in self.macro.operands if not one.written)
        else:
            regions = tuple(matrix.region for matrix in self.inputs)
        if self.descriptor.accumulate:
            regions += self.held_regions
        return regions

    def writes(self) -> tuple[Region, ...]:
        """Memory, and held sums, that it changes."""
        if self.macro is not None:
            used = () if self.workspace is None else (self.workspace,)
            if self.holds:
                return self.held_regions + used
            return tuple(one.region for one in self.macro.operands if one.written) + used
        if self.output is None:
            return ()
        return self.held_regions if self.holds else (self.output.region,)
