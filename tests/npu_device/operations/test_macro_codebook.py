"""Weights of VQ8: products against numpy, bytes and cycles of the codebooks and of what the DMA expands."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_cases import attributes, nchw, out_size
from npu_macro import CONFIG, MacroRig, block, random
from npu_rig import DRAM, SPM
from onnx_reference import reference
from shares import draws

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import CODEBOOK_BYTES, DataType, Opcode
from npu_device.config import DmaConfig
from npu_device.cost.durations import Timing
from npu_device.cost.plan import Compute, Transfer
from npu_device.operations.checks import DescriptorError
from npu_device.operations.macro.base import setting_of
from npu_device.trace.events import Role

T = DataType
Array = np.ndarray[Any, Any]


def weights(rows: int, columns: int, books: int, seed: int) -> tuple[Array, Array, Array]:
    """(codes, vectors, the elements that they stand for), an element at a time."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (rows, -(-columns // 8))).astype(np.uint8)
    vectors = rng.standard_normal((books, 256, 8)).astype(np.float16)
    made = np.zeros((rows, columns), np.float16)
    for row in range(rows):
        for column in range(columns):
            made[row, column] = vectors[row * books // rows, codes[row, column // 8], column % 8]
    return codes, vectors, made


def placed(rig: MacroRig, codes: Array, vectors: Array) -> dict[str, int]:
    return {"in1_addr": rig.put(codes, T.UINT8), "codebook": rig.put(vectors.reshape(-1, 8), T.FP16)}


@settings(max_examples=draws(50), deadline=None)
@given(
    st.integers(1, 20), st.integers(1, 40), st.integers(1, 40), st.sampled_from((8, 16, 32)), st.integers(1, 4),
    st.booleans(), st.booleans(), st.integers(0, 2), st.sampled_from((T.FP16, T.FP32, T.BF16)),
)  # fmt: skip
def test_a_product_is_that_of_the_vectors(
    m: int, n: int, k: int, tile: int, books: int, nk: bool, weight: bool, prefetch: int, kind: DataType
) -> None:
    rows, columns = (n, k) if nk else (k, n)
    books = min(books, rows)
    codes, vectors, meant = weights(rows, columns, books, 1)
    rig = MacroRig()
    x = random(kind, m, k, 2)
    at = placed(rig, codes, vectors)
    d = Descriptor(
        opcode=Opcode.GEMM_T, tile_m=8, tile_n=tile, tile_k=tile, type_in0=kind, type_in1=T.VQ8, type_out=T.FP32,
        in1_nk=int(nk), in0_addr=rig.put(x, kind), in1_addr=at["in1_addr"], out_addr=rig.place(m * n * 4),
        prefetch_dist=prefetch, param0=books,
    )  # fmt: skip
    rig.execute(d, block(Opcode.GEMM_T, {"codebook": at["codebook"]}, m=m, n=n, k=k, loop_order=int(weight)))
    expected = x.astype(np.float64) @ (meant.T if nk else meant).astype(np.float64)
    got = rig.get(d.out_addr, m, n, T.FP32)
    assert np.abs(got - expected).max() <= 1e-5 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_is_that_of_the_vectors(groups: int) -> None:
    s = {"batch": 2, "h": 6, "w": 5, "kh": 3, "kw": 2, "sh": 1, "sw": 1, "dh": 1, "dw": 1}
    s |= {"pt": 1, "pl": 0, "pb": 1, "pr": 1}
    p, q = out_size(s)
    cin, cout = 4 * groups, 16 * groups
    codes, vectors, meant = weights(s["kh"] * s["kw"] * cin // groups, cout, 3, 4)
    rig = MacroRig()
    x = random(T.FP32, s["batch"] * s["h"] * s["w"], cin, 3)
    at = placed(rig, codes, vectors)
    d = Descriptor(
        opcode=Opcode.CONV2D_T, tile_m=7, tile_n=8, tile_k=10, type_in0=T.FP32, type_in1=T.VQ8, type_out=T.FP32,
        in0_addr=rig.put(x, T.FP32), in1_addr=at["in1_addr"], out_addr=rig.place(s["batch"] * p * q * cout * 4),
        prefetch_dist=1, param0=3,
    )  # fmt: skip
    own = {**s, "cin": cin, "cout": cout, "groups": groups, "codebook": at["codebook"]}
    rig.execute(d, block(Opcode.CONV2D_T, own))
    kernel = meant.astype(np.float64).reshape(s["kh"], s["kw"], cin // groups, cout).transpose(3, 2, 0, 1)
    image = nchw(x.astype(np.float64).reshape(s["batch"], s["h"], s["w"], cin))
    y = reference("Conv", image, np.ascontiguousarray(kernel), group=groups, **attributes(s))
    expected = y.transpose(0, 2, 3, 1).reshape(-1, cout)
    got = rig.get(d.out_addr, len(expected), cout, T.FP32)
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


def product(rig: MacroRig, books: int = 2, **changes: int) -> tuple[Descriptor, Any]:
    """64 x 128 x 256, four tiles of weights."""
    d = Descriptor(
        opcode=Opcode.GEMM_T, tile_m=64, tile_n=64, tile_k=128, type_in0=T.FP16, type_in1=T.VQ8, type_out=T.FP16,
        in0_addr=DRAM + 0x1_0000, in1_addr=DRAM + 0x4_0000, out_addr=DRAM + 0x2_0000, prefetch_dist=1, param0=books,
    )  # fmt: skip
    made = block(Opcode.GEMM_T, {"codebook": DRAM + 0x6_0000}, m=64, n=128, k=256)
    return d.with_(**changes), made


def test_codebooks_come_once_and_before_the_weights_which_are_expanded_on_their_way() -> None:
    rig = MacroRig()
    macro = rig.decoded(*product(rig))
    for lanes in (1, 2):
        plan = macro.plan(setting_of(CONFIG), lanes)
        steps = [plan.pieces[index] for index in plan.piece]
        read = [i for i, one in enumerate(steps) if isinstance(one, Transfer) and one.role is Role.WEIGHT]
        (books,) = [i for i in read if steps[i].dram.row_bytes == 2 * CODEBOOK_BYTES]
        indices = [i for i in read if i != books]
        assert books < indices[0] and books in plan.after[indices[0]]
        moved = [steps[i] for i in indices]
        assert all(isinstance(one, Transfer) for one in moved)
        assert sum(one.payload for one in moved) == 128 * 256 // 8
        assert sum(one.spm.payload for one in moved) == 128 * 256 * 2
        assert sum(one.elements for one in moved) == 128 * 256
        assert {one.bits_w for one in steps if isinstance(one, Compute)} == {16}


@pytest.mark.parametrize(("rate", "cycles"), [(64, 128 * 64 // 64), (32, 128 * 64 // 32), (1 << 20, 16)])
def test_the_dma_expands_so_many_elements_per_cycle(rate: int, cycles: int) -> None:
    """A tile of 128 x 64 elements is 128 rows of 8 bytes, a burst each; ports without a limit take all of it."""
    config = replace(CONFIG, dma=DmaConfig(vq_elements_per_cycle=rate), spm=replace(CONFIG.spm, port=None))
    rig = MacroRig(config)
    plan = rig.decoded(*product(rig)).plan(setting_of(config), 1)
    costs = {Timing(config).cost(one).cycles for one in plan.pieces if isinstance(one, Transfer) and one.elements}
    assert costs == {max(cycles, 128)}  # a burst for each of 128 rows


@pytest.mark.parametrize(
    ("changes", "own", "code", "text"),
    [
        ({"param0": 0}, {}, TicketError.SHAPE, "param0: 0 codebooks for 256 rows of in1: must be 1..256"),
        ({"param0": 257}, {}, TicketError.SHAPE, "param0: 257 codebooks for 256 rows of in1: must be 1..256"),
        ({"type_in1": T.FP16}, {}, TicketError.RESERVED, "param0 0x2: must be 0, it is not used"),
        ({"type_in1": T.FP16, "param0": 0}, {}, TicketError.RESERVED, "must be 0 without VQ8 weights"),
        ({"type_in0": T.INT8, "type_out": T.INT32}, {}, TicketError.DATA_TYPE, "type_in1 12: must be one of INT8"),
        ({"type_in0": T.VQ8}, {}, TicketError.DATA_TYPE, "type_in0 12: must be one of"),
        ({"tile_n": 4}, {}, TicketError.SHAPE, "tile_n 4: must be a multiple of 8 for VQ8"),
        ({"in1_addr": SPM}, {}, TicketError.ADDRESS, "must be in DRAM: the DMA expands it"),
        ({}, {"codebook": SPM}, TicketError.ADDRESS, "codebook 0x"),
        ({}, {"codebook": DRAM + 1}, TicketError.MISALIGNED, "codebook 0x"),
    ],
)
def test_what_cannot_be_is_an_error_ticket(
    changes: dict[str, int], own: dict[str, int], code: TicketError, text: str
) -> None:
    rig = MacroRig()
    d, made = product(rig, **changes)
    if own:
        made = block(Opcode.GEMM_T, own, m=64, n=128, k=256)
    with pytest.raises(DescriptorError, match=text) as caught:
        rig.decoded(d, made)
    assert caught.value.code is code
