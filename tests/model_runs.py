"""Runs of compiled models, at a level or by IA alone."""

from typing import Any

from npu_device.config import NpuConfig
from pyv_npu.config import Config
from pyv_npu.result import Result
from pyv_npu.workloads import ia
from pyv_npu.workloads.compiled import FIRMWARE_SUBMITS
from pyv_npu.workloads.data import Tensors, Values
from pyv_npu.workloads.model import prepare_compiled
from toolchain.compiler import Compiled


def run_compiled(
    config: Config, compiled: Compiled, inputs: Tensors | None = None, submit: str = FIRMWARE_SUBMITS
) -> Result[Any]:
    return prepare_compiled(config, compiled, inputs, submit).run(config)


def execute(compiled: Compiled, config: NpuConfig, inputs: Tensors) -> dict[str, Values]:
    return ia.observed(compiled, config, inputs)[0]
