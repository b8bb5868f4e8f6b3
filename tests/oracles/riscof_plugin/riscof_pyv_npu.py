"""RISCOF plugin: PyV-NPU as the device under test. docs/conformance.md has the configuration file and the command."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from riscof import utils
from riscof.pluginTemplate import pluginTemplate

GCC = "riscv64-unknown-elf-gcc"
FLAGS = ("-mabi=ilp32", "-static", "-mcmodel=medany", "-nostdlib", "-nostartfiles", "-Wl,--no-warn-rwx-segments")
MODEL = Path(__file__).resolve().parent.parent / "arch_model"
"""model_test.h and the linker script."""


class pyv_npu(pluginTemplate):  # noqa: N801 - RISCOF wants the name of the plugin
    __model__ = "PyV-NPU"
    __version__ = "1"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = kwargs["config"]
        self.isa_spec = str(Path(config["ispec"]).resolve())
        self.platform_spec = str(Path(config["pspec"]).resolve())
        self._command = config.get("command", "pyv-npu")
        self._jobs = int(config.get("jobs", 1))
        self._env = ""
        self._isa = ""

    def initialise(self, suite: str, work_dir: str, archtest_env: str) -> None:
        self._env = archtest_env

    def build(self, isa_yaml: str, platform_yaml: str) -> None:
        """Take the hart's ISA from the specification: "RV32IMACUZicsr_Zba" is rv32imacu_zicsr_zba."""
        letters, _, others = utils.load_yaml(isa_yaml)["hart0"]["ISA"].partition("Z")
        self._isa = "_".join((letters, *(f"Z{name}" for name in others.split("_Z") if name))).lower()

    def runTests(self, testList: dict[str, Any]) -> None:  # noqa: N802, N803 - RISCOF's names
        with ThreadPoolExecutor(self._jobs) as pool:
            list(pool.map(self._run, testList.values()))

    def _run(self, test: dict[str, Any]) -> None:
        """Compile one test and leave its signature; RISCOF reports one that is missing."""
        folder = Path(test["work_dir"])
        elf, signature = folder / "test.elf", folder / f"{self.name[:-1]}.signature"
        defines = [f"-D{macro}" for macro in test["macros"]]
        compiler = [GCC, f"-march={test['isa'].lower()}", *FLAGS, f"-I{MODEL}", f"-I{self._env}"]
        commands = (
            [*compiler, f"-T{MODEL / 'link.ld'}", *defines, test["test_path"], "-o", elf],
            [self._command, "run", elf, "--signature", signature, "--set", f"core.isa={self._isa}"],
        )
        with (folder / "pyv_npu.log").open("w") as log:
            for command in commands:
                if subprocess.run(command, stdout=log, stderr=log, timeout=600).returncode:
                    return
