"""Mixed steps are the commands that one request alone has, and their times put together are those of whole steps."""

from dataclasses import replace

import pytest
from shares import slow_rows

from npu_device.abi.opcodes import Opcode
from npu_device.config import NpuConfig
from npu_device.kv_quant.methods import METHODS
from pyv_npu.config import load
from pyv_npu.config.shape_file import shape_of
from pyv_npu.serving.server import ScheduledTokens
from pyv_npu.serving.step_parts import ProductTimes, Simulator
from pyv_npu.serving.step_time import StepTimes
from pyv_npu.serving.study import kv_storage
from pyv_npu.workloads.built_in import BuiltIn
from pyv_npu.workloads.compiled import target_of
from pyv_npu.workloads.timing import layer_ends, run_commands
from toolchain.codegen.commands import MappingOptions
from toolchain.decoders.builtin import compile_shape
from toolchain.decoders.mixed_step import Chunk, Parts, compile_mixed_step
from toolchain.decoders.shapes import OPT_FACTS, Job, Shape
from toolchain.errors import ModelError

LLAMA = Shape("small", 6, 512, 8, 4, 64, 1024, 4000)
OPT = Shape("small-opt", 4, 512, 8, 8, 64, 2048, 4000, **OPT_FACTS)
WINDOW = replace(LLAMA, window=128)
ALTERNATE = replace(LLAMA, layers=4, window=128, whole_every=2)
DENSE_FIRST = replace(LLAMA, ffn=256, experts=4, active=2, dense_layers=2, dense_ffn=1024)
LATENT = Shape(
    "small-latent",
    4,
    512,
    8,
    8,
    96,
    256,
    4000,
    latent=224,
    latent_rotary=32,
    value_dim=64,
    experts=4,
    active=2,
    shared_ffn=256,
    dense_layers=1,
    dense_ffn=1024,
)
NPU = NpuConfig()


@pytest.mark.parametrize("shape", [LLAMA, OPT, WINDOW, LATENT], ids=["llama", "opt", "window", "latent"])
@pytest.mark.parametrize(("tokens", "context"), [(1, 100), (37, 0)])
def test_a_step_of_one_request_is_the_step_of_a_built_in_model(shape: Shape, tokens: int, context: int) -> None:
    job, target = Job(shape, 2, context + tokens, 1), target_of(NPU)._replace(measured=None)
    alone = compile_shape(job, target, tokens)
    mixed = compile_mixed_step(job, target, [Chunk(tokens, context)])
    if shape.positions:  # a table of positions is read by the position there, by its rows here
        assert abs(len(alone.commands) - len(mixed.commands)) <= 1
        return
    assert [one.descriptor.opcode for one in mixed.commands[: len(alone.commands)]][:5] == [
        one.descriptor.opcode for one in alone.commands
    ][:5]
    cycles = [
        run_commands(made, NPU, memory=memory).cycles
        for made, memory in ((alone.commands, alone.position(context)), (mixed.commands, mixed.memory))
    ]
    if tokens == 1:
        assert cycles[0] == cycles[1]
    else:  # the last row is copied before the output matrix
        assert cycles[0] <= cycles[1] <= 1.05 * cycles[0]


@pytest.mark.parametrize(
    ("shape", "kv"),
    [
        pytest.param(ALTERNATE, "fp16", id="alternate-fp16"),
        pytest.param(DENSE_FIRST, "fp16", id="dense-first-fp16", marks=pytest.mark.slow),
        pytest.param(LATENT, "fp16", id="latent-fp16", marks=pytest.mark.slow),
        *(pytest.param(one, kv, id=f"{one.name}-{kv}", marks=pytest.mark.slow)
          for one, kv in ((LLAMA, "uniform4"), (LLAMA, "fp16"), (LLAMA, "oaken"), (OPT, "oaken"), (OPT, "fp16"))),
    ],
)  # fmt: skip
def test_times_put_together_are_those_of_whole_steps(shape: Shape, kv: str) -> None:
    times = StepTimes(Simulator(NPU, shape, 16), kv_storage(kv))
    steps = (
        [(1, context) for context in (5, 63, 64, 200, 311)],
        [(1, 90)] * 3 + [(77, 0)],
        [(1, 250), (40, 60), (103, 0)],
        [(1, 1500), (1, 700)] if shape is ALTERNATE else [(130, 200)],
    )
    for index, chunks in enumerate(steps):
        check = times.check(index, chunks)
        assert abs(check.error) < (0.035 if shape is LATENT else 0.03), check
    bend = times.linearity(steps[1])
    assert abs(bend) < 0.02 if bend is not None else len(times.kinds) == 2


def test_points_of_an_axis_may_lie_beyond_the_table_of_positions() -> None:
    short = Simulator(NPU, replace(OPT, positions=34), 16)
    assert short.run([Chunk(64, 0)], Parts.PRODUCTS).cycles > short.run([Chunk(30, 0)], Parts.PRODUCTS).cycles


def test_attention_of_each_method_is_simulated() -> None:
    simulator, widths = Simulator(NPU, LLAMA, 16), ("uniform2", "uniform4", "uniform8", "fp16")
    cycles = {name: simulator.run([Chunk(1, 1000)], Parts.ATTENTION, 1, kv_storage(name)).cycles for name in METHODS}
    assert sorted(widths, key=cycles.__getitem__) == list(widths)
    assert all(cycles["uniform4"] < cycles[name] < cycles["fp16"] for name in ("oaken", "qserve", "atom", "tender"))


@pytest.mark.parametrize(
    ("requests", "context", "share"),
    [(2, 511, 0.85), *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        (16, 511, 0.85), (16, 1023, 0.62), (16, 4095, 0.62), (64, 511, 0.85), (64, 2047, 0.62), (128, 511, 0.85)))],
)  # fmt: skip
def test_attention_with_oaken_takes_less_than_with_8_bits(requests: int, context: int, share: float) -> None:
    """Of Llama2-7B on oaken-lpddr; without appends of few accesses and overlapping writes it took as long."""
    simulator = Simulator(load(preset="oaken-lpddr").config.npu, shape_of("llama2-7b"), 16)
    chunks = [Chunk(1, context)] * requests
    oaken, uniform = (
        sum(simulator.run(chunks, Parts.ATTENTION, 1, kv_storage(kv)).attention(0)) for kv in ("oaken", "uniform8")
    )
    assert oaken < share * uniform


@pytest.mark.parametrize("kv", ["fp16", pytest.param("oaken", marks=pytest.mark.slow)])
def test_requests_side_by_side_take_what_whole_steps_take(kv: str) -> None:
    """With the policy token-batch, on four engines: less than a round, a round, three, and contexts that differ."""
    npu = replace(NPU, te=replace(NPU.te, count=4))
    simulator = Simulator(npu, LLAMA, 16)
    products = ProductTimes(simulator.products)
    times, turns = (StepTimes(simulator, kv_storage(kv), concurrency=beside, products=products) for beside in (4, 1))
    for contexts in ([90] * 3, [300] * 4, [64] * 11, [10, 200, 90, 311, 140]):
        chunks = [(1, context) for context in contexts]
        check = times.check(0, chunks)
        assert abs(check.error) < 0.022, check
        assert times.cycles(chunks) != turns.cycles(chunks)
    assert times.cycles([(7, 0)]) == turns.cycles([(7, 0)])


def test_a_model_may_have_one_layer() -> None:
    """Times between layers are those of two, however few the model has."""
    single_layer = StepTimes(Simulator(NPU, replace(LLAMA, layers=1), 16), kv_storage("fp16"))
    deep = StepTimes(Simulator(NPU, LLAMA, 16), kv_storage("fp16"), 1)
    for chunks in ([(37, 0)], [(1, 100)] * 3):
        assert single_layer.cycles(chunks) == deep.cycles(chunks)
        assert abs(single_layer.check(0, chunks).error) < 0.02


def test_requests_side_by_side_have_an_engine_each() -> None:
    chunks = [Chunk(1, 50)] * 5
    made = compile_mixed_step(Job(LLAMA, 1, 1), target_of(NPU), chunks, Parts.ATTENTION, beside=4)
    blocks = [one.block for one in made.commands if one.descriptor.opcode == Opcode.ATTN_T]
    assert [one.engines for one in blocks if one] == [1] * 5
    places = [one.workspace for one in blocks if one]
    assert places[0] == places[4] and len(set(places)) == 4


def test_a_layer_among_others_takes_its_period() -> None:
    """Products from attention to attention take the period of whole layers: exactly, or with one row within 0.2 %,
    since loads of the next product run beside the append."""
    simulator = Simulator(NPU, LLAMA, 16)
    for rows, resident in ((1, True), (21, True), (90, False)):
        whole = simulator.run([Chunk(rows, 0)], Parts.PRODUCTS, 2, resident=resident)
        between = simulator.run([Chunk(rows, 0)], Parts.BETWEEN, 2, resident=resident).between
        attention = sum(whole.attention(1))
        assert abs(between + attention - whole.period) <= (whole.period // 500 if rows == 1 else 0)


def test_products_side_by_side_have_their_part_of_the_engines() -> None:
    """Of 16: tiles of the first on 14 of them left the second the other two, to its end, which took 6 times as long."""
    npu, shape = load(preset="a100").config.npu, Shape("wide", 2, 512, 8, 4, 64, 7168, 4000)
    made = compile_mixed_step(Job(shape, 1, 1), target_of(npu)._replace(measured=None), [Chunk(182, 0)], Parts.PRODUCTS)
    commands = [one for one in made.commands if one.layer in ("layer0.ffn.gate", "layer0.ffn.up")]
    assert [one.block and one.block.engines for one in commands] == [8, 8]
    alone = (run_commands([one], npu, memory=made.memory).cycles for one in commands)
    assert run_commands(commands, npu, memory=made.memory).cycles <= sum(alone)


def test_products_have_the_tiles_that_the_user_names() -> None:
    """`compiler.tile` decides as in `run`: steps take other cycles, and no search."""
    simulator = Simulator(NPU, LLAMA, 16)
    by_hand = replace(simulator, mapping=MappingOptions(tile=(32, 64, 128)))
    step = compile_mixed_step(Job(LLAMA, 1, 1), by_hand.target, [Chunk(90, 0)], Parts.PRODUCTS)
    tiles = {(one.descriptor.tile_m, one.descriptor.tile_n, one.descriptor.tile_k) for one in step.commands
             if one.descriptor.opcode == Opcode.GEMM_T}  # fmt: skip
    assert tiles and all(m <= 32 and n <= 64 and k <= 128 for m, n, k in tiles)
    cycles = (one.run([Chunk(90, 0)], Parts.BETWEEN, 2).between for one in (simulator, by_hand))
    assert next(cycles) != next(cycles)


@pytest.mark.parametrize("rows", [1, 90])
def test_devices_that_differ_in_codecs_share_products(rows: int) -> None:
    """The tables of `serve --compare preset=...` and of `reproduce oaken` rest on it."""
    oaken, lpu = (Simulator(load(preset=name).config.npu, LLAMA, 16) for name in ("oaken-lpddr", "lpu-lpddr"))
    assert oaken != lpu and oaken.products == lpu.products
    cycles = {one.run([Chunk(rows, 0)], Parts.BETWEEN, 2).between for one in (oaken, lpu, lpu.products)}
    assert len(cycles) == 1
    times = [StepTimes(one, kv_storage("oaken"), products=ProductTimes(lpu.products)) for one in (oaken, lpu)]
    assert times[0].cycles([(1, 511)]) < times[1].cycles([(1, 511)])


def test_products_take_as_long_for_any_number_of_requests() -> None:
    """Words of positions lie before the rows: where these begin, and how many accesses a row takes, does not follow."""
    simulator = Simulator(NPU, LLAMA, 16)
    one, many = (simulator.run([Chunk(rows, 0)] * (720 // rows), Parts.BETWEEN, 2, resident=False).between
                 for rows in (720, 80))  # fmt: skip
    assert one == many


@pytest.mark.parametrize(
    ("preset", "sizes"),
    [("oaken-lpddr", (53,)), *slow_rows(("oaken-lpddr", (53, 270)), (None, (37, 53, 75, 101, 145, 270, 382)))],
)
def test_between_points_products_take_what_they_take_there(preset: str | None, sizes: tuple[int, ...]) -> None:
    """Rows between points of steps from tile to tile."""
    npu = load(preset=preset).with_defaults(BuiltIn.defaults, BuiltIn.needs).config.npu
    simulator = Simulator(npu, LLAMA, 16)
    times, errors = ProductTimes(simulator), []
    for rows in sizes:
        used = times.layer[rows]
        exact = simulator.run([Chunk(rows, 0)], Parts.BETWEEN, 2).between
        errors.append(abs(used - exact) / exact)
    assert max(errors) < 0.01
    assert times.simulated <= 40


def test_operands_of_attention_stay_in_the_scratchpad_up_to_a_number_of_rows() -> None:
    """Of however many requests, in the whole step."""
    rows = ProductTimes(Simulator(NPU, LLAMA, 16)).resident_rows
    for requests in (1, rows):
        for more in (0, 1):
            chunks = [Chunk(rows - requests + 1 + more, 40)] + [Chunk(1, 60)] * (requests - 1)
            graph = compile_mixed_step(Job(LLAMA, 1, 1), target_of(NPU), chunks).program.graph
            assert graph.resident("layer0.attention.qkv.out") is not bool(more), (requests, more)


def test_ends_of_layers_are_those_of_a_run_with_events() -> None:
    made = compile_mixed_step(Job(LLAMA, 1, 1), target_of(NPU), [Chunk(3, 20), Chunk(1, 60)])
    run = run_commands(made.commands, NPU, memory=made.memory)
    assert layer_ends(made.commands, NPU, made.memory) == run.layers
    assert max(end for _, end in run.layers) == run.cycles


def test_a_ledger_keeps_what_a_step_took() -> None:
    one, other = (ScheduledTokens(((7, 1, 40), (9, 12, last))) for last in (0, 1))
    assert list(one) == [(7, 1, 40), (9, 12, 0)]
    assert (len(one), len(ScheduledTokens())) == (2, 0)
    assert one == ScheduledTokens(list(one))
    assert one != other


def test_a_chunk_must_have_tokens() -> None:
    with pytest.raises(ModelError, match=r"^small: 0 tokens at context 3: must be at least 1, and 0$"):
        compile_mixed_step(Job(LLAMA, 1, 1), target_of(NPU), [Chunk(0, 3)])
