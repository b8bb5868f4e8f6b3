"""Products that keep to fewer engines: never slower on more, and measured only where fewer could be faster."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.models.splits import bert_layer
from npu_device.abi.memory_map import DRAM_BASE
from npu_device.abi.opcodes import Opcode
from npu_device.config import NpuConfig
from npu_device.levels.runner import Listed, Run, Runner
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.timing import run_commands
from toolchain.codegen import Command
from toolchain.codegen.measure import measure_cost
from toolchain.codegen.memory import reserve_residents
from toolchain.compiler import Compiled, compile_model
from toolchain.examples import EXAMPLES
from toolchain.examples.builder import Builder
from toolchain.examples.variants import in_int8
from toolchain.onnx_model.model import prepare


def pointwise(kind: str) -> Any:
    """As in MobileNetV2."""
    b = Builder(kind)
    y = b.node("Conv", b.node("Conv", "x", b.weight(384, 64, 1, 1)), b.weight(64, 384, 1, 1))
    return b.model("m", [1, 64, 14, 14], y, [1, 64, 14, 14])


def one_convolution() -> Any:
    """Faster on three engines than on four."""
    b = Builder()
    return b.model("m", [1, 32, 28, 28], b.node("Conv", "x", b.weight(576, 32, 1, 1)), [1, 576, 28, 28])


def device(engines: int) -> NpuConfig:
    return replace(NpuConfig(), te=replace(NpuConfig().te, count=engines))


def compiled(proto: Any, config: NpuConfig) -> Compiled:
    return compile_model(prepare(proto, "m"), target_of(config))


def asked(made: Compiled) -> list[int]:
    """The most engines of each product; 0: all."""
    products = [one for one in made.commands if one.descriptor.opcode in (Opcode.GEMM_T, Opcode.CONV2D_T)]
    return [one.block.engines for one in products if one.block is not None]


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_more_engines_are_never_slower(kind: str) -> None:
    found = []
    for engines in range(1, 6):
        config = device(engines)
        made = compiled(pointwise(kind), config)
        assert all(count < engines for count in asked(made))
        found.append(run_commands(made.commands, config).cycles)
    assert all(more <= fewer * 1.01 for fewer, more in pairwise(found)), found


@pytest.mark.parametrize("name", ["cnn", "decoder_int8"])
def test_a_layer_alone_has_its_residents_behind_the_workspace(name: str) -> None:
    """Those of a layer alone, in banks of their own, would take more than is reserved for those of the model."""
    program = compiled(EXAMPLES[name](), NpuConfig())
    target = reserve_residents(program.graph, target_of(NpuConfig()))
    costs = {layer.id: measure_cost(program.graph, [layer], target) for layer in program.graph.layers}
    assert all(costs.values()), costs


class Watch:
    """Counts what is measured."""

    def __init__(self, config: NpuConfig) -> None:
        self.target, self.times = target_of(config), list[int | None]()

    def __call__(self, commands: Sequence[Command]) -> int | None:
        assert self.target.measured is not None
        self.times.append(self.target.measured(commands))
        return self.times[-1]


def test_a_layer_that_computes_all_the_time_is_not_measured() -> None:
    watch = Watch(device(2))
    compile_model(prepare(EXAMPLES["gemm"](512, 512, 512, "float32"), "m"), watch.target._replace(measured=watch))
    assert not watch.times


def test_a_layer_is_measured_as_long_as_the_model_takes() -> None:
    config = device(4)
    watch = Watch(config)
    made = compile_model(prepare(one_convolution(), "m"), watch.target._replace(measured=watch))
    layers = run_commands(made.commands, config).layers
    ends = {layer.layer: layer.cycle for layer in layers}
    (product,) = [one.layer for one in made.commands if one.block is not None and one.block.engines]
    before = max((cycle for cycle in ends.values() if cycle < ends[product]), default=0)
    least = min(time for time in watch.times if time is not None)
    assert abs(ends[product] - before - least) <= least // 100


def test_independent_layers_are_measured_side_by_side() -> None:
    """Products beside layers like them and beside vector layers, none of which writes an operand or, in
    DRAM, a result of another; residents have the places that they have in the scratchpad."""
    config = device(3)
    lists = list[Sequence[Command]]()
    target = target_of(config)

    def measured(commands: Sequence[Command]) -> int | None:
        lists.append(commands)
        assert target.measured is not None
        return target.measured(commands)

    model = prepare(in_int8(bert_layer)(length=64, width=256, heads=4), "m")
    compile_model(model, target._replace(measured=measured))
    several = [commands for commands in lists if len({one.layer for one in commands}) > 1]
    assert any({one.descriptor.opcode for one in commands} > {Opcode.GEMM_T} for commands in several)
    for commands in several:
        written = [one.descriptor.out_addr for one in commands]
        product = commands[0].descriptor
        in_dram = [address for address in written if address >= DRAM_BASE]
        assert len(set(in_dram)) == len(in_dram)
        assert not {product.in0_addr, product.in1_addr} & set(in_dram)


def test_layers_with_a_waiting_product_between_them_are_no_reason_for_fewer_engines() -> None:
    """As in ResNet-50: the 3 x 3 convolution waits for the first and has the whole scratchpad, so the shortcut after it
    does not run beside the first."""
    b = Builder()
    first = b.node("Relu", b.node("Conv", "x", b.weight(256, 512, 1, 1)))
    second = b.node("Relu", b.node("Conv", first, b.weight(256, 256, 3, 3), pads=[1] * 4, strides=[2, 2]))
    shortcut = b.node("Conv", "x", b.weight(1024, 512, 1, 1), strides=[2, 2])
    y = b.node("Add", b.node("Conv", second, b.weight(1024, 256, 1, 1)), shortcut)
    model = compiled(b.model("m", [1, 512, 28, 28], y, [1, 1024, 14, 14]), device(2))
    assert asked(model) == [0] * 4


def test_a_model_becomes_the_same_commands_every_time() -> None:
    one, two = (compiled(one_convolution(), device(4)) for _ in range(2))
    assert one.commands == two.commands
    assert 3 in asked(one)


def test_a_product_is_measured_once_on_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loose and tight devices are the same without a core; another channel of DRAM makes another device."""
    runs = list[NpuConfig]()

    class Counted(Runner):
        def run(self, commands: Sequence[Listed]) -> Run:
            runs.append(self.config)
            return super().run(commands)

    monkeypatch.setattr("pyv_npu.workloads.compiled.Runner", Counted)
    config = device(4)
    config = replace(config, dram=replace(config.dram, latency=config.dram.latency + 7))  # no other test's
    first = compiled(one_convolution(), config)
    times = len(runs)
    assert times > 1
    for mode in ("loose", "tight"):
        assert compiled(one_convolution(), replace(config, mode=mode)).commands == first.commands
        assert len(runs) == times
    wider = replace(config, dram=replace(config.dram, channels=2 * config.dram.channels))
    compiled(one_convolution(), wider)
    assert len(runs) > times
    assert runs[times].dram == wider.dram
