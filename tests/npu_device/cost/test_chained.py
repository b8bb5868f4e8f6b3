"""The Chained Vector Engine (docs/chained-ve.md): the dataflow by brute force, and the closed forms that count it."""

from dataclasses import replace
from itertools import product as combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import draws
from work_count import calls

from npu_device.config import ChainedConfig
from npu_device.cost import chained
from npu_device.cost.dataflow import FORMS, Engines, Tile, attend, run
from npu_device.cost.plan import Sight

PAPER = ChainedConfig()


def chain(engines: int, skip: str = "dataflow", **more: int) -> ChainedConfig:
    return ChainedConfig(T=engines, mask_skip=skip, **more)


def met(tiles: list[Tile], queries: int, past: int) -> np.ndarray:
    """How often each query has met each key."""
    times = np.zeros((queries, past + queries), int)
    for tile in tiles:
        np.add.at(times, (tile.query[tile.paired], tile.key[tile.paired]), 1)
    return times


def seen(queries: int, past: int) -> np.ndarray:
    return np.arange(past + queries) <= past + np.arange(queries)[:, None]


@pytest.mark.parametrize("engines", range(1, 33))
def test_the_dataflow_meets_every_unmasked_pair_once_and_the_closed_form_counts_its_cycles(engines: int) -> None:
    """C2, C3, C7: T = 1..32, every length up to 4T."""
    for length in range(1, 4 * engines + 1):
        tiles = list(run(Engines(engines), length))
        times = met(tiles, length, 0)
        assert (times[seen(length, 0)] == 1).all()
        counted = chained.masked(chain(engines, lanes=1, lat=0, restart=0), length, length, 1, 8)
        assert counted.steps == sum(len(tile.query) for tile in tiles)
        assert counted.useful == -(-length * (length + 1) // 2 // engines)
        if length % (2 * engines) == 0:
            assert all(tile.paired.all() for tile in tiles), "an engine is idle"
            assert counted.steps * 2 * engines == length * (length + 1)
            assert times.sum() == length * (length + 1) // 2


@settings(max_examples=draws(150), deadline=None)
@given(st.integers(1, 12), st.integers(1, 60), st.integers(0, 60), st.sampled_from(FORMS))
def test_every_form_counts_what_it_does_with_a_past(engines: int, queries: int, past: int, form: str) -> None:
    """C1, C2, C5, C7b: cycles, keys and pairs, of lengths that fill no tile too."""
    simulated = Engines(engines)
    tiles = list(run(simulated, queries, past, form))
    times = met(tiles, queries, past)
    assert (times[seen(queries, past)] == 1).all() and times.max() == 1
    unit = chain(engines, form if form != "plain" else "tile", lanes=1, lat=0, restart=0)
    count = chained.plain if form == "plain" else chained.masked
    counted = count(unit, queries, past + queries, 1, 8, past)
    assert counted.steps == sum(len(tile.query) for tile in tiles)
    if queries > 1:
        reached = [np.unique(tile.key[tile.paired]) for tile in tiles]
        shown = sum(len(keys) for keys in reached)
        assert shown <= counted.keys_read <= shown + engines * len(tiles)
    assert times.sum() >= chained.pairs(past + np.arange(queries), past + queries) == seen(queries, past).sum()


@pytest.mark.parametrize("engines", (1, 2, 5, 16))
def test_the_closed_form_of_an_engine(engines: int) -> None:
    """C3: the query and the key of engine e in cycle c."""
    t = engines
    tile = next(run(Engines(t), 2 * t))
    assert tile.diagonal == (2 * t > t)
    for c, e in combinations(range(2 * t + 1), range(t)):
        if c <= e:
            expected = (e, e - c)
        elif c <= e + t:
            expected = (2 * t - 1 - e, (e - c) % t)
        else:
            expected = (2 * t - 1 - e, c - 1 - e)
        assert (tile.query[c, e], tile.key[c, e]) == expected


@pytest.mark.parametrize("engines", (1, 2, 5, 16))
def test_the_edge_of_a_window_is_the_dataflow_from_the_other_end(engines: int) -> None:
    """Keys from the query's own on are those of a diagonal tile with queries and keys counted from the last; without
    the own key the first and the last cycle, which are the diagonal, have nothing to do."""
    t = engines
    met = {(c, e): (e, e - c) if c <= e else (2 * t - 1 - e, (e - c) % t if c <= e + t else c - 1 - e)
           for c, e in combinations(range(2 * t + 1), range(t))}  # fmt: skip
    edge = sorted((2 * t - 1 - query, 2 * t - 1 - key) for query, key in met.values())
    assert edge == [(query, key) for query in range(2 * t) for key in range(query, 2 * t)]
    own = {place for place, (query, key) in met.items() if query == key}
    assert own == {(c, e) for c in (0, 2 * t) for e in range(t)}


@pytest.mark.parametrize(
    ("window", "chained_steps", "skipped"), [(128, 3264, 3080), (64, 2016, 1796), (32, 1200, 962), (16, 744, 497)]
)
def test_gains_grow_with_sparsity(window: int, chained_steps: int, skipped: int) -> None:
    """L = 256, T = 8, windows of whole tiles: no engine is ever without a pair."""
    steps = [chained.masked(chain(8, skip, lanes=128, lat=0, restart=0), 256, 256, 128, 16, window=window).steps
             for skip in ("tile", "dataflow")]  # fmt: skip
    assert steps == [chained_steps, skipped]
    assert skipped == -(-chained.pairs(np.arange(256), 256, window=window) // 8)


def test_a_tile_takes_as_long_as_its_keys_where_they_are_slow() -> None:
    """Tiles on the diagonal, at the edge of a window with the own key and without, and between."""
    unit = chain(8, "dataflow", lanes=128, lat=1000, restart=0)
    kinds = set[tuple[bool, ...]]()
    for window in (0, 16, 32, 33):
        work = chained.masked(unit, 64, 64, 128, 16, window=window)
        grid = chained.tiles(unit, 64, 64, 0, True, window)
        kinds.add((grid.diagonal > 0, grid.edge[0] > 0, grid.edge[1] > 0, grid.other > 0))
        count = grid.diagonal + sum(grid.edge) + grid.other
        assert work.steps + work.key_wait == count * chained.read_cycles(unit, 128, 16, 2)
    assert all(map(any, zip(*kinds, strict=True)))
    grid = chained.tiles(unit, 64, 128, 64, True, 33)
    assert (grid.side, grid.diagonal, grid.edge, grid.other) == (16, 4, (4, 0), 4), "behind a past of four tiles"


TABLE = {
    16: {8: (24, 17)},
    32: {8: (80, 66), 16: (48, 33)},
    64: {8: (288, 260), 16: (160, 130), 32: (96, 65)},
    128: {8: (1088, 1032), 16: (576, 516), 32: (320, 258)},
    256: {8: (4224, 4112), 16: (2176, 2056), 32: (1152, 1028)},
    512: {8: (16640, 16416), 16: (8448, 8208), 32: (4352, 4104)},
    1024: {8: (66048, 65600), 16: (33280, 32800), 32: (16896, 16400)},
    2048: {8: (263168, 262272), 16: (132096, 131136), 32: (66560, 65568)},
}


@pytest.mark.parametrize(("length", "engines"), [(length, t) for length, row in TABLE.items() for t in row])
def test_the_table_of_the_paper(length: int, engines: int) -> None:
    """C4: chained and with mask skip."""
    found = tuple(
        chained.masked(chain(engines, skip, lanes=128, lat=0, restart=0), length, length, 128, 16).steps
        for skip in ("tile", "dataflow")
    )
    assert found == TABLE[length][engines]


def test_key_accesses_are_counted_by_the_dataflow() -> None:
    """C5: L = 256, T = 8."""
    accesses = {}
    for form in ("plain", "tile", "dataflow"):
        engines = Engines(8)
        for _ in run(engines, 256, form=form):
            pass
        accesses[form] = engines.key_reads
    assert accesses == {"plain": 4224, "tile": 528, "dataflow": 272}


@pytest.mark.parametrize("double_buffer", (True, False))
def test_buffers(double_buffer: bool) -> None:
    """C9: 2T queries and two times T keys; without, T queries of every diagonal tile are read one by one."""
    t, length = 8, 128
    engines = Engines(t, double_buffer)
    diagonal = sum(tile.diagonal for tile in run(engines, length))
    assert (engines.max_queries, engines.max_keys) == (2 * t if double_buffer else t, 2 * t)
    assert engines.late_queries == (0 if double_buffer else t * diagonal)
    config = replace(PAPER, double_buffer=double_buffer)
    counted = chained.masked(config, length, length, 128, 16)
    assert counted.query_load == engines.late_queries * chained.read_cycles(config, 128, 16)


def test_the_experiment_of_the_paper_with_its_calibrated_constants() -> None:
    """C6: OPT-6.7B, L = 256, D = 128 in fp16, T = 8."""
    plain = chained.plain(PAPER, 256, 256, 128, 16).cycles
    tile = chained.masked(replace(PAPER, mask_skip="tile"), 256, 256, 128, 16).cycles
    skip = chained.masked(PAPER, 256, 256, 128, 16).cycles
    assert (plain, tile, skip) == (102_432, 34_848, 33_168)
    assert round(plain / tile, 2) == 2.94
    assert round(100 * (tile / skip - 1), 1) == 5.1


# -- function ----------------------------------------------------------------------------------------------------------


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    """Masked attention in fp64."""
    scores = q.astype(np.float64) @ k.T.astype(np.float64) * scale
    scores[~seen(len(q), len(k) - len(q))] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ v.astype(np.float64)


@settings(max_examples=draws(40), deadline=None)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 30), st.integers(1, 17), st.sampled_from(FORMS),
       st.integers(0, 1 << 30))  # fmt: skip
def test_attention_through_the_dataflow_is_masked_attention(
    engines: int, queries: int, past: int, width: int, form: str, seed: int
) -> None:
    """C8, in any order of keys."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((rows, width)).astype(np.float32) for rows in (queries, *[past + queries] * 2))
    scale = width**-0.5
    made = attend(Engines(engines), q, k, v, scale, form)
    expected = reference(q, k, v, scale)
    assert np.abs(made.out - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("engines", (4, 8, 16))
def test_multiplications(engines: int) -> None:
    """C8: L(L+1)/2 D with mask skip, L(L+T)/2 D where wholly masked tiles are passed over."""
    length, width = 96, 24
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((length, width)).astype(np.float32) for _ in range(3))
    macs = {form: attend(Engines(engines), q, k, v, 1.0, form).macs for form in FORMS}
    assert macs["dataflow"] == length * (length + 1) // 2 * width
    assert macs["tile"] == macs["plain"] == length * (length + engines) // 2 * width
    assert macs["none"] == length * length * width


# -- what the device asks ----------------------------------------------------------------------------------------------


def brute(rows: int, sight: Sight) -> np.ndarray:
    """Which keys each row sees."""
    query = (sight.phase + np.arange(rows)[:, None]) // sight.group + sight.ahead
    key = np.arange(sight.keys)
    mask = np.ones((rows, sight.keys), bool)
    if sight.causal:
        mask &= key <= query
    if sight.window:
        mask &= key > query - sight.window
    return mask


@settings(max_examples=draws(300), deadline=None)
@given(
    st.integers(1, 70), st.integers(1, 70), st.integers(-40, 90), st.integers(0, 3), st.integers(1, 4), st.booleans(),
    st.sampled_from((0, 0, 1, 5, 16, 40)), st.integers(1, 9), st.sampled_from(("none", "tile", "dataflow")),
)  # fmt: skip
def test_tiles_of_any_mask(
    rows: int, keys: int, ahead: int, phase: int, group: int, causal: bool, window: int, engines: int, skip: str
) -> None:
    """Tiles that the engines work through hold every unmasked pair, and those of the diagonal no masked one more than
    their own triangle has; cycles are never below those of the pairs."""
    sight = Sight(True, keys, 16, ahead, phase % group, group, causal, window)
    mask = brute(rows, sight)
    config = chain(engines, skip)
    assert chained.unmasked_rows(rows, sight) == mask.sum()
    made = chained.attention(config, rows, sight, 16)
    assert made.steps * engines >= mask.sum(), "one cycle for a pair at 16 lanes"
    assert made.steps >= made.useful >= mask.sum() / engines
    if skip == "none":
        count = sum(-(-len(range(m, rows, group)) // engines) for m in range(group))
        if all(len(range(m, rows, group)) > 1 for m in range(min(group, rows))) and phase % group == 0:
            assert made.steps == count * -(-keys // engines) * engines
    elif not mask.any():
        assert made.cycles == 0
    if group == 1 and rows > 1 and skip != "none":
        grid = chained.tiles(config, rows, keys, ahead, causal, window)
        assert grid.diagonal + sum(grid.edge) + grid.other == visited(mask, grid.side, ahead, causal)


def visited(mask: np.ndarray, side: int, ahead: int, causal: bool) -> int:
    """Tiles of a grid that begins at the diagonal, with an unmasked pair in them."""
    if causal and ahead < 0:
        mask, ahead = mask[-ahead:], 0
    past = min(ahead, mask.shape[1]) if causal else mask.shape[1]
    query, key = np.nonzero(mask)
    return len({*zip((query // side).tolist(), ((key - past) // side).tolist(), strict=True)})


def test_generation_has_no_use_for_the_chain() -> None:
    """C7: one query takes ceil(L / T) steps; each of them reads T keys at once."""
    for length in (1, 7, 8, 9, 100, 1024):
        made = chained.masked(PAPER, 1, length, 128, 16, length - 1)
        steps = -(-length // 8)
        wide = max(chained.read_cycles(PAPER, 128, 16), chained.step_cycles(PAPER, 128))
        assert made.steps + made.key_wait == steps * wide
        assert made.steps == 8 * steps
        assert made.keys_read == length
    grouped = chained.attention(PAPER, 4, Sight(True, 100, 128, 99, 0, 4, True, 0), 16)
    assert grouped == chained.masked(PAPER, 1, 100, 128, 16, 99).times(4)


@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 300), st.sampled_from((4, 8, 16, 32)), st.integers(1, 16))
def test_a_product_takes_the_better_of_two_orders(m: int, n: int, k: int, bits: int, engines: int) -> None:
    config = chain(engines)
    one, other = (chained.product(config, *shape, k, bits, bits) for shape in ((m, n), (n, m)))
    assert one.work.cycles == other.work.cycles
    assert one.work.steps * engines >= m * n * chained.step_cycles(config, k)
    if m % engines == 0 and n % engines == 0:  # C6: tiles of T x T
        step, read = chained.step_cycles(config, k), chained.read_cycles(config, k, bits)
        if m > 1 and n > 1:
            assert one.work.cycles == m * n // engines**2 * (engines * max(read, step) + config.restart)
    whole = one.reads if one.work.cycles != other.work.cycles else None
    assert whole is None or min(whole) == 1


def test_a_long_sequence_takes_two_calls_a_cycle() -> None:
    """One of the engines' column, one of the chain around it; a tile's own are a few more."""
    cycles: list[int] = []
    counted = calls(lambda: cycles.extend(len(tile.query) for tile in run(Engines(32), 2048)))
    assert sum(cycles) == 65_568
    assert counted < 2.2 * 65_568
