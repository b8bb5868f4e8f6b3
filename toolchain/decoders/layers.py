"""Decoder given as NPU-IR: the layers of a prompt of fixed length and of a step, with their caches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from npu_device.abi.opcodes import DataType
from toolchain.codegen import Target
from toolchain.compiler import compile_graph
from toolchain.decoders.decoder import IDS, LOG, NEXT, POSITION, POSITIONS, PROMPT, CompiledDecoder, Decoder, KvTensor
from toolchain.decoders.reference import DecodeStep
from toolchain.errors import ModelError
from toolchain.ir.graph import Graph
from toolchain.ir.reference import ReferenceExecution
from toolchain.mlir.npu.graph import graph_of, is_graph
from toolchain.mlir.npu.model import model_of
from toolchain.mlir.text.source import read

_FLOATS = (DataType.FP32, DataType.FP16, DataType.BF16)


@dataclass(frozen=True)
class LayerDecoder(Decoder):
    """Decoder in NPU-IR; its reference is numpy on the layers."""

    graph: Graph = field(default_factory=lambda: Graph(""))

    @property
    def rounded(self) -> tuple[str, ...]:
        return ()

    @property
    def prompt(self) -> int:
        """Number of tokens of the prompt."""
        return self.graph.tensors[PROMPT + IDS].elements

    @property
    def t_max(self) -> int:
        """Capacity of the caches, tokens."""
        return self.graph.tensors[LOG].shape[2]

    def compiled(self, target: Target, passes: str = "all") -> CompiledDecoder:
        """Return commands for the prompt and for one token."""
        compiled = compile_graph(model_of(self.graph, self.name), self.graph, target, passes=passes)
        count = sum(command.layer.startswith(PROMPT) for command in compiled.commands)
        return CompiledDecoder(self, compiled, count, self.prompt, self.t_max)

    def steps(self, tokens: Sequence[int], codes: Sequence[Mapping[str, Any]] = ()) -> Iterator[DecodeStep]:
        """Yield the step of the whole prompt, then one step per further token except the last."""
        run, past = ReferenceExecution(self.graph), 0
        for prefix, part in ((PROMPT, tokens[: self.prompt]), *(("", [token]) for token in tokens[self.prompt : -1])):
            positions = np.arange(past, past + len(part))
            layers = [layer for layer in self.graph.layers if layer.id.startswith(PROMPT) == bool(prefix)]
            run.write(prefix + IDS, np.asarray(part))
            wide = self.positions and prefix
            run.write(prefix + (POSITIONS if wide else POSITION), positions if wide else positions[:1])
            run.layers(layers)
            log = next(layer for layer in layers if LOG in layer.outputs)
            yield DecodeStep(run.wide(log.inputs[0]).reshape(len(part), self.vocab), {}, {}, {})
            past += len(part)


def load_layers(path: Path) -> LayerDecoder:
    """Return the decoder in an NPU-IR module. ModelError: it is not a decoder, in one line."""
    source = read(path)
    if not is_graph(source):
        raise ModelError(f"{path}: is no decoder: --generate takes one in ONNX, or its NPU-IR (--emit npu-mlir)")
    graph = graph_of(source)
    updates = [layer for layer in graph.layers if layer.op_type == "KV_UPDATE" and not layer.id.startswith(PROMPT)]
    missing = [key for key in (PROMPT + IDS, PROMPT + NEXT, IDS, POSITION, NEXT, LOG) if key not in graph.tensors]
    if missing or not updates:
        raise ModelError(f"{path}: no decoder: it has no {missing[0] if missing else 'layer that updates a cache'}")
    caches = []
    for layer in sorted(updates, key=lambda update: update.integer("kv_layer")):
        for name in layer.outputs:
            tensor = graph.tensors[name]
            if tensor.dtype not in _FLOATS or tensor.is_kv_head_split:
                raise ModelError(f"{path}: cache {name} of {tensor.dtype.name}: give the ONNX decoder, and --qbits-kv")
            caches.append(KvTensor(name, name, tensor.shape[1], tensor.shape[3], tensor.dtype))
    log = graph.tensors[LOG]
    vocab, positions = log.shape[1] * log.shape[3], PROMPT + POSITIONS in graph.tensors
    return LayerDecoder(str(path), None, tuple(caches), vocab, positions, graph=graph)
