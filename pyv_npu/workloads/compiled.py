"""What a compiled model becomes: commands for the device of a configuration, a program, and the files of a folder."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from npu_device.config import NpuConfig
from pyv_ext.elf import Program, parse_elf
from toolchain.codegen import Target
from toolchain.codegen.cmdq import document
from toolchain.compiler import Compiled
from toolchain.ir.text import render
from toolchain.program_image import WEIGHTS, weights_file

UNLIMITED = 1 << 20
"""Bytes per cycle that stand for a rate without a limit."""


def target_of(npu: NpuConfig) -> Target:
    """The device that a configuration describes, as the compiler sees it: sizes, and rates in NPU cycles, rounded
    down."""
    core, own = npu.clock_ratio
    per_cycle = [
        rate * core // (own * npu.clock_hz)
        for rate in (npu.dram.bytes_per_second, npu.noc.bytes_per_second)
        if rate is not None
    ]
    return Target(
        spm_bytes=npu.spm.size,
        banks=npu.spm.banks,
        acc_bytes=npu.te.acc_bytes,
        dram_bytes=npu.dram.size,
        engines=npu.te.count,
        array=(npu.te.rows, npu.te.columns),
        systolic=npu.te.kind != "roofline",
        kernel_position=npu.te.conv_lowering == "kernel_position",
        port=npu.spm.port or UNLIMITED,
        vectors=npu.ve.count,
        lanes=npu.ve.lanes,
        vector_latency=npu.ve.latency,
        channels=npu.dma.channels,
        channel_rate=npu.dma.bytes_per_cycle or UNLIMITED,
        dram_rate=max(1, min(per_cycle, default=UNLIMITED)),
        latency=npu.dram.latency + npu.noc.latency,
    )


def loaded(elf: bytes, compiled: Compiled, name: str) -> Program:
    """The image of a model under a name, with the constants that the core does not see as a sidecar file."""
    program = parse_elf(elf, name)
    return replace(program, sidecars={WEIGHTS: weights_file(compiled)}) if compiled.memory.beyond else program


def listing(compiled: Compiled, npu: NpuConfig) -> dict[str, bytes]:
    """npu_ir.jsonl, the layers as imported and after every pass, and cmdq.json, the list of commands for a device."""
    return {
        "npu_ir.jsonl": "".join(f"{line}\n" for line in compiled.trace).encode(),
        "cmdq.json": (json.dumps(document(compiled.commands, target_of(npu))) + "\n").encode(),
    }


def write_folder(
    compiled: Compiled, elf: bytes, folder: Path, npu: NpuConfig, *, apart: bool = False,
    more: Mapping[str, Any] | None = None,
) -> list[Path]:  # fmt: skip
    """Write the image, the IR, the list of commands, and where inputs and outputs are; return the paths. `apart`: the
    weights are in weights.bin, as they have to be where the core does not see them; `more`: keys of model.json."""
    made = {
        "image.elf": elf,
        **({WEIGHTS: weights_file(compiled)} if apart or compiled.memory.beyond else {}),
        "npu_ir.txt": render(compiled.graph).encode(),
        **listing(compiled, npu),
        "model.json": (json.dumps({**_description(compiled), **(more or {})}, indent=2) + "\n").encode(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in made.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in made]


def _description(compiled: Compiled) -> dict[str, object]:
    graph, memory = compiled.graph, compiled.memory

    def tensors(names: tuple[str, ...]) -> dict[str, object]:
        return {
            name: {
                "type": graph.tensors[name].dtype.name,
                "shape": list(graph.tensors[name].shape),
                "address": memory.address(graph, name),
            }
            for name in names
        }

    return {
        "schema": 1, "model": compiled.model.name, "commands": len(compiled.commands), "descriptors": memory.commands,
        "inputs": tensors(graph.inputs), "outputs": tensors(graph.outputs),
    }  # fmt: skip
