"""The interface between firmware and NPU, declared once (docs/interface.md).

The C header, the pages in docs/ and the debugger's view are generated from these tables; importing the package
checks them.
"""

from npu_device.abi.memory_map import NPU_WINDOW
from npu_device.abi.registers import REGISTERS, UNITS, check_registers

check_registers(REGISTERS, UNITS, NPU_WINDOW)
