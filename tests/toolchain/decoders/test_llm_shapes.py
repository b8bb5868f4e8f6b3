"""Built-in decoder models against the table of docs/llm.md, and its capacity figures."""

from pathlib import Path

import pytest

from pyv_npu.config.shape_file import shape_of
from toolchain.decoders.shapes import MODELS, Job
from toolchain.errors import ModelError

TABLE = {
    # layers, width, heads, kv heads, head_dim, ffn, matrices, vocab, 1e9 parameters, fp16 GB, fp16 KiB per token
    "llama2-7b": (32, 4096, 32, 32, 128, 11008, 3, 32000, 6.74, 13.5, 512),
    "llama2-13b": (40, 5120, 40, 40, 128, 13824, 3, 32000, 13.02, 26.0, 800),
    "llama2-70b": (80, 8192, 64, 8, 128, 28672, 3, 32000, 68.98, 138.0, 320),
    "opt-6.7b": (32, 4096, 32, 32, 128, 16384, 2, 50272, 6.65, 13.3, 512),
    "opt-13b": (40, 5120, 40, 40, 128, 20480, 2, 50272, 12.84, 25.7, 800),
    "opt-30b": (48, 7168, 56, 56, 128, 28672, 2, 50272, 29.96, 59.9, 1344),
    "mistral-7b": (32, 4096, 32, 8, 128, 14336, 3, 32000, 7.24, 14.5, 128),
    "mixtral-8x7b": (32, 4096, 32, 8, 128, 14336, 3, 32000, 46.70, 93.4, 128),
}
PUBLISHED = {
    "llama2-7b": 6_738_415_616, "llama2-13b": 13_015_864_320, "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248, "mistral-7b": 7_241_732_096, "mixtral-8x7b": 46_702_792_704,
    "opt-6.7b": 6_658_473_984, "opt-13b": 12_853_473_280, "opt-30b": 29_974_540_288,
}  # fmt: skip
"""Numbers of parameters in the published checkpoints."""
FIT = {"llama2-7b": (225, 61), "llama2-13b": (137, 32), "llama2-70b": (175, 0), "opt-30b": (69, 7),
       "mistral-7b": (899, 244), "mixtral-8x7b": (605, 0)}  # fmt: skip
"""Requests of 2,048 tokens with fp16 that fit 256 GB and 80 GB."""


@pytest.mark.parametrize("name", TABLE)
def test_a_shape_is_the_published_one(name: str) -> None:
    shape = MODELS[name]
    layers, width, heads, kv_heads, dim, ffn, matrices, vocab, parameters, weights, kv = TABLE[name]
    assert (shape.layers, shape.width, shape.heads, shape.kv_heads) == (layers, width, heads, kv_heads)
    assert (shape.head_dim, shape.ffn, shape.matrices, shape.vocab) == (dim, ffn, matrices, vocab)
    assert shape.parameters == pytest.approx(parameters * 1e9, rel=2e-3)  # the table leaves out positions and biases
    assert shape.weight_bytes() == pytest.approx(weights * 1e9, rel=2e-3)
    assert shape.kv_bytes(1) == kv * 1024


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_checkpoint(name: str) -> None:
    assert MODELS[name].parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", FIT)
def test_as_many_requests_fit_as_the_capacity_allows(name: str) -> None:
    shape = MODELS[name]
    for dram, requests in zip((256e9, 80e9), FIT[name], strict=True):
        assert max(0, (int(dram) - shape.weight_bytes()) // shape.kv_bytes(2048)) == requests


@pytest.mark.parametrize(("bits", "size"), [(2, 1_048_576), (4, 2_097_152), (8, 4_194_304), (16, 8_388_608)])
def test_the_footprint_of_keys_is_exact(bits: int, size: int) -> None:
    job = Job(shape_of("llama2-7b"), 32, 1024, kv_bits=lambda layer, head: bits)
    assert job.cache(0, 0).bytes_alloc == size  # R16
    assert job.kv_bytes == 64 * size == shape_of("llama2-7b").kv_bytes(1024, bits=bits)


def test_what_does_not_fit_is_one_line() -> None:
    job = Job(shape_of("llama2-13b"), 40, 8192, 16, kv_bits=lambda layer, head: 16)
    job.check_capacity(134_000_000_000)
    with pytest.raises(ModelError, match=r"26\.0 GB .* 107\.4 GB .* 133\.4 GB, npu\.dram\.size is 80\.0 GB") as caught:
        job.check_capacity(80_000_000_000)
    assert "\n" not in str(caught.value)


def test_heads_of_one_width_share_a_command() -> None:
    job = Job(shape_of("mistral-7b"), 2, 64, kv_bits=lambda layer, head: 8 if (layer, head) == (1, 2) else 4)
    assert [(group.first, group.heads) for group in job.groups(0)] == [(0, 8)]
    assert [(group.first, group.heads, group.kind.name) for group in job.groups(1)] == [
        (0, 2, "INT4"), (2, 1, "INT8"), (3, 5, "INT4"),
    ]  # fmt: skip
    assert job.cache(1, 0).bytes_alloc == 64 * (7 * 64 + 128)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 33}, "llama2-7b: 33 layers: the model has 32"),
        ({"t_max": 0}, "llama2-7b: t_max 0: must be at least 1"),
        ({"weight_bits": 3}, "llama2-7b: 3 bits: must be one of 16, 8, 4, 2"),
        ({"kv_bits": lambda layer, head: 32}, "llama2-7b: 32 bits: must be one of 16, 8, 4, 2"),
    ],
)
def test_a_wrong_job_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Job(**{"shape": shape_of("llama2-7b"), "layers": 32, "t_max": 64, **change})  # type: ignore[arg-type]


def test_the_documented_table_is_the_code() -> None:
    text = (Path(__file__).parents[3] / "docs" / "llm.md").read_text(encoding="utf-8")
    for shape in MODELS.values():
        ffn = f"{shape.ffn} ({shape.matrices})" + (f" x {shape.experts}" if shape.experts > 1 else "")
        cells = (
            shape.name, shape.layers, shape.width, f"{shape.heads}/{shape.kv_heads}", ffn, shape.vocab,
            f"{shape.parameters / 1e9:.2f}", f"{shape.weight_bytes() / 1e9:.1f}", shape.kv_bytes(1) // 1024,
            shape.kv_bytes(1, bits=4) // 1024,
        )  # fmt: skip
        assert f"| {' | '.join(map(str, cells))} |" in text


def test_an_unknown_model_names_those_there_are() -> None:
    with pytest.raises(ModelError, match=r"gpt-5: no built-in model; there are llama2-7b, "):
        shape_of("gpt-5")
