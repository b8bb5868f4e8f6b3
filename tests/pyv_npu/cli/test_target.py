"""The device as the compiler sees it is the device of the configuration, for ONNX models and for built-in ones."""

from npu_device.abi.memory_map import SPM_BASE
from npu_device.abi.opcodes import Opcode
from npu_device.config import DmaConfig, DramConfig, NpuConfig, SpmConfig, TeConfig
from pyv_npu.workloads.built_in import PhaseRequest, build
from pyv_npu.workloads.compiled import target_of
from toolchain.codegen import Target


def test_the_default_target_is_the_default_device() -> None:
    assert target_of(NpuConfig())._replace(measured=None) == Target()


def test_every_size_and_rate_comes_from_the_configuration() -> None:
    config = NpuConfig(
        spm=SpmConfig(size=1 << 20, banks=4), te=TeConfig(count=3, rows=32, columns=16, acc_bytes=1 << 15),
        dram=DramConfig(size=1 << 30, latency=7), dma=DmaConfig(channels=5),
    )  # fmt: skip
    made = target_of(config)
    assert (made.spm_bytes, made.banks, made.acc_bytes, made.dram_bytes) == (1 << 20, 4, 1 << 15, 1 << 30)
    assert (made.engines, made.te, made.channels, made.latency) == (3, config.te, 5, 7 + config.noc.latency)


def test_built_in_models_are_cut_for_that_device() -> None:
    """Every product has a workspace, all within the scratchpad."""
    for engines, size in ((1, 1 << 20), (3, 4 << 20)):
        config = NpuConfig(spm=SpmConfig(size=size), te=TeConfig(count=engines), dram=DramConfig(size=1 << 40))
        commands = build(config, PhaseRequest("llama2-7b", layers=1)).commands
        products = [c.block for c in commands if c.descriptor.opcode == Opcode.GEMM_T and c.block is not None]
        workspaces = {block.workspace for block in products}
        assert workspaces and all(SPM_BASE <= start < SPM_BASE + size for start in workspaces)
