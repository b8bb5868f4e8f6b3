"""Units that an injected fault holds: what they have taken waits, what needs another unit does not."""

from npu_rig import DRAM, SMALL_SPM, SPM, Rig

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.config import DmaConfig, NpuConfig
from npu_device.decode.command import Command
from npu_device.issue.injection import Injector
from npu_device.trace.events import What

LOAD = Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=64, type_in0=DataType.INT8, in0_addr=DRAM, out_addr=SPM)


class Holder(Injector):
    """Injector that holds the first command that starts."""

    def __init__(self) -> None:
        self.command: Command | None = None

    def takes(self, cycle: int, command: Command) -> bool:
        self.command, first = self.command or command, self.command is None
        return first


def test_a_unit_that_is_stuck_takes_no_other_command() -> None:
    rig, holder = Rig(NpuConfig(spm=SMALL_SPM, dma=DmaConfig(channels=2))), Holder()
    rig.device.inject(holder)
    for index in range(4):
        rig.submit(LOAD.with_(stream=index + 1, out_addr=SPM + 0x100 * index))
    rig.go(3000)
    held = holder.command
    assert held is not None and held.unit is not None
    units = {event["ticket"]: event["unit"] for event in rig.happened(What.DMA_BEGIN)}
    assert sorted(units) == [2, 3, 4] and held.unit not in units.values()
    rig.device.resume(rig.now, held)
    rig.idle()
    assert rig.stamps(What.DMA_BEGIN)[held.ticket] >= 3000
    assert sorted(rig.stamps(What.DONE)) == [1, 2, 3, 4]
