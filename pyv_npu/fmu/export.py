"""`export-fmu`: export of a platform and its firmware as an FMI 2.0 co-simulation unit (docs/fmu.md)."""

import shutil
import tempfile
from pathlib import Path

from pyv_native.files import write_bytes
from pyv_npu import boot
from pyv_npu.config import Effective
from pyv_npu.config.render import render
from pyv_npu.errors import UsageError
from toolchain.errors import require_extra

CONFIG, FIRMWARE = "config.yaml", "firmware.elf"
SCRIPT = "pyv_npu_platform.py"
_UNIT = '''"""A PyV-NPU platform as an FMI 2.0 co-simulation unit."""

from pathlib import Path
from xml.etree.ElementTree import SubElement

from pythonfmu import Boolean, Fmi2Causality, Fmi2Slave, Fmi2Variability, Integer, Real

from pyv_npu.fmu.stepper import Stepper


class Platform(Fmi2Slave):
    """Inputs hold for the step that follows."""

    description = "RISC-V firmware and an NPU on one clock"

    def __init__(self, **options):
        super().__init__(**options)
        self.clock_scale, self.interrupt, self.dram_slowdown = 1.0, False, 1
        self.cycles = self.queue_depth = self.completed = 0.0
        self.te_utilization = self.ve_utilization = self.dma_utilization = self.dram_bytes_per_s = 0.0
        self.running = True
        inputs = {"causality": Fmi2Causality.input}
        self.register_variable(Real("clock_scale", start=1.0, **inputs))
        self.register_variable(
            Boolean("interrupt", start=False, variability=Fmi2Variability.discrete, **inputs)
        )
        self.register_variable(Integer("dram_slowdown", start=1, variability=Fmi2Variability.discrete, **inputs))
        for name in ("cycles", "queue_depth", "completed", "te_utilization", "ve_utilization", "dma_utilization",
                     "dram_bytes_per_s"):
            self.register_variable(Real(name, causality=Fmi2Causality.output))
        self.register_variable(
            Boolean("running", causality=Fmi2Causality.output, variability=Fmi2Variability.discrete)
        )
        self._stepper = None

    def to_xml(self, model_options=None):
        """With the outputs as initial unknowns, as FMI 2.0.2, section 2.2.8 wants them."""
        root = super().to_xml(model_options or {})
        structure = root.find("ModelStructure")
        unknowns = SubElement(structure, "InitialUnknowns")
        for output in structure.find("Outputs"):
            SubElement(unknowns, "Unknown", {"index": output.attrib["index"]})
        return root

    def exit_initialization_mode(self):
        folder = Path(self.resources)
        self._stepper = Stepper(folder / "config.yaml", folder / "firmware.elf")

    def do_step(self, current_time, step_size):
        self._stepper.step(current_time + step_size, self.clock_scale, self.interrupt, self.dram_slowdown)
        for name, value in self._stepper.outputs._asdict().items():
            setattr(self, name, value if isinstance(value, bool) else float(value))
        return True
'''


def export(effective: Effective, destination: Path) -> Path:
    """Write the unit of a configuration and its `run.program`. MissingExtraError: pythonfmu is not installed."""
    with require_extra("fmu", "export-fmu"):
        from pythonfmu.builder import FmuBuilder
    if destination.suffix != ".fmu":
        raise UsageError(f"-o {destination}: the name of a unit ends in .fmu")
    program = boot.find_program(effective.config.run.program)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # a failed cleanup does not lose the unit
        folder = Path(name)
        shutil.copyfile(program, folder / FIRMWARE)
        (folder / CONFIG).write_text(render(effective), encoding="utf-8")
        (folder / SCRIPT).write_text(_UNIT, encoding="utf-8")
        destination.parent.mkdir(parents=True, exist_ok=True)
        FmuBuilder.build_FMU(folder / SCRIPT, folder / destination.name, [folder / FIRMWARE, folder / CONFIG])
        write_bytes(destination, (folder / destination.name).read_bytes())
    return destination
