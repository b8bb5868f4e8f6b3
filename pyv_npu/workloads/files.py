"""The folder of a compiled model."""

import json
from collections.abc import Mapping
from pathlib import Path

from pyv_npu.config import Config
from pyv_npu.report.folder import write_bytes
from pyv_npu.workloads.data import Tensors, complete_inputs
from pyv_npu.workloads.generate import Ready
from pyv_npu.workloads.run import image
from pyv_npu.workloads.target import target_of
from toolchain.codegen import Target
from toolchain.codegen.cmdq import document
from toolchain.compiler import Compiled
from toolchain.ir.text import render
from toolchain.program_image import WEIGHTS, weights_file


def write_files(
    compiled: Compiled, folder: Path, seed: int, device: Target, *, apart: bool = False, inputs: Tensors | None = None
) -> list[Path]:
    """Write the image with `inputs` (random numbers of `seed` for those that are not given), the IR, the list of
    commands for `device`, and where inputs and outputs are; return the paths. `apart`: the weights in weights.bin, as
    it has to be where the core does not see them."""
    elf = image(compiled, complete_inputs(compiled, seed, inputs or {}), apart=apart)
    return _write(compiled, folder, device, elf, apart, {})


def write_decoder(ready: Ready, folder: Path, device: Target, *, apart: bool = False) -> list[Path]:
    """As `write_files`, for a decoder whose image generates; model.json also says what."""
    wish, made = ready.wish, ready.made
    said = {
        "prompt": list(wish.prompt), "given": list(wish.given), "new": wish.new, "t_max": made.t_max,
        "commands": {"prompt": made.prompt_commands, "step": made.step_commands},
    }  # fmt: skip
    return _write(made.compiled, folder, device, ready.image(apart=apart), apart, {"generate": said})


def _write(
    compiled: Compiled, folder: Path, device: Target, elf: bytes, apart: bool, more: Mapping[str, object]
) -> list[Path]:
    apart = apart or compiled.memory.beyond
    made = {
        "image.elf": elf,
        **({WEIGHTS: weights_file(compiled)} if apart else {}),
        "npu_ir.txt": render(compiled.graph).encode(),
        **listing(compiled, device),
        "model.json": (json.dumps({**_description(compiled), **more}, indent=2) + "\n").encode(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in made.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in made]


def listing(compiled: Compiled, device: Target) -> dict[str, bytes]:
    """npu_ir.jsonl, the layers as imported and after every pass, and cmdq.json, the list of commands for `device`."""
    return {
        "npu_ir.jsonl": "".join(f"{line}\n" for line in compiled.trace).encode(),
        "cmdq.json": (json.dumps(document(compiled.commands, device)) + "\n").encode(),
    }


def write_listing(compiled: Compiled, folder: Path, config: Config) -> None:
    """Put `listing` into the folder of a report."""
    for name, data in listing(compiled, target_of(config.npu)).items():
        write_bytes(folder / name, data)


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
