"""Choices of a model are those of the next one with equal layers, on an equal device."""

from dataclasses import replace
from typing import Any

import pytest

from npu_device.config import NpuConfig, SpmConfig, TeConfig
from pyv_npu.workloads.compiled import target_of
from toolchain.codegen import Target
from toolchain.compiler import Compiled, compile_model
from toolchain.examples import EXAMPLES
from toolchain.onnx_model.model import prepare
from toolchain.passes import choices, engines, tiling

NPU = NpuConfig(te=TeConfig(count=2))


def compiled(target: Target, name: str = "model", **shape: int) -> Compiled:
    return compile_model(prepare(EXAMPLES["gemm"](**({"m": 96, "n": 160, "k": 64} | shape)), name), target)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the layers that were searched for."""
    choices.clear()
    layers = list[str]()

    def noted(search: Any, layer: Any) -> Any:
        def call(graph: Any, found: Any, *rest: Any) -> Any:
            layers.append(layer(found).id)
            return search(graph, found, *rest)

        return call

    monkeypatch.setattr(tiling, "_tile", noted(tiling._tile, lambda layer: layer))
    monkeypatch.setattr(engines, "_best", noted(engines._best, lambda group: group[0]))
    return layers


def test_an_equal_model_has_the_choices_of_the_first(searches: list[str]) -> None:
    first = compiled(target_of(NPU))
    count = len(searches)
    again = compiled(target_of(NPU), "another")
    assert count == len(searches) >= 2
    assert again.commands == first.commands
    choices.clear()
    assert compiled(target_of(NPU)).commands == first.commands and len(searches) == 2 * count


def test_commands_do_not_depend_on_earlier_models() -> None:
    names = "mlp", "cnn_int8", "decoder"

    def commands(name: str) -> Any:
        return compile_model(prepare(EXAMPLES[name](), name), target_of(NPU)).commands

    after = {name: commands(name) for name in (*names, *reversed(names))}
    for name in names:
        choices.clear()
        assert commands(name) == after[name]


def test_how_commands_arrive_is_no_other_device(searches: list[str]) -> None:
    first = compiled(target_of(NPU))
    count = len(searches)
    assert compiled(target_of(replace(NPU, mode="loose"))).commands == first.commands
    assert len(searches) == count


@pytest.mark.parametrize(
    "npu",
    [
        replace(NPU, te=TeConfig(count=3)), replace(NPU, te=TeConfig(count=2, rows=8)),
        replace(NPU, spm=SpmConfig(size=1 << 19)), replace(NPU, dma=replace(NPU.dma, channels=1)),
    ],
)  # fmt: skip
def test_another_device_has_its_own(npu: NpuConfig, searches: list[str]) -> None:
    compiled(target_of(NPU))
    count = len(searches)
    made = compiled(target_of(npu)).commands
    assert len(searches) == 2 * count
    choices.clear()
    assert compiled(target_of(npu)).commands == made


@pytest.mark.parametrize("shape", [{"m": 95}, {"n": 161}, {"k": 63}])
def test_another_layer_has_its_own(shape: dict[str, int], searches: list[str]) -> None:
    compiled(target_of(NPU))
    count = len(searches)
    compiled(target_of(NPU), **shape)
    assert len(searches) == 2 * count
