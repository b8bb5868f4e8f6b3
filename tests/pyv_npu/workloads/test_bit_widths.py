"""The rules of docs/bit-widths.md through the command line: sizes, alignment, packing, rates, QConfig, refusals."""

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest
from shares import slow

from npu_device.abi.opcodes import DataType
from npu_device.config import DramConfig, NpuConfig
from npu_device.levels.command_list import load, run
from npu_device.trace.events import ROLE, What
from pyv_npu.cli import main
from pyv_npu.config import yaml_file
from pyv_npu.config.package_data import data_files
from pyv_npu.config.yaml_file import load_qconfig
from toolchain.examples import EXAMPLES
from toolchain.examples.decoder_kv import decoder_kv
from toolchain.ir.graph import SPM, Graph, Role, TensorIR
from toolchain.ir.verify import IrError, verify

PAGE = Path(__file__).parents[3] / "docs" / "quantization.md"
_, SEED_WIDTHS, SEED_CACHES, *_ = re.findall(
    r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)
"""The files of the page that the plan has."""


def move(**more: Any) -> dict[str, Any]:
    base = {"opcode": "DMA_LOAD_TILE", "tensor_role": "weight", "qbits": 8, "dram_addr": 0, "num_elements": 4096,
            "spm_bank": 0, "spm_offset": 0}  # fmt: skip
    return base | more


class Cli:
    """`pyv-npu run` in a folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def file(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text, encoding="utf-8")
        return str(self.folder / name)

    def listed(self, *commands: dict[str, Any]) -> str:
        return self.file("list.json", json.dumps({"schema": 1, "commands": list(commands)}))

    def model(self, name: str, *arguments: int) -> str:
        path = self.folder / f"{name}.onnx"
        onnx.save(EXAMPLES[name](*arguments), path)
        return str(path)

    def json(self, *words: str) -> Any:
        assert main(["run", *words, "--json"]) == 0, self.capsys.readouterr().err
        return json.loads(self.capsys.readouterr().out)

    def refused(self, *words: str, code: int = 65) -> str:
        assert main(["run", *words]) == code
        return self.capsys.readouterr().err


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, capsys)


def built_in(cli: Cli, text: str, *words: str, layers: str = "1") -> Any:
    qconfig = ["--qconfig", cli.file("q.yaml", text)] if text else []
    return cli.json("llama2-7b", "--layers", layers, "--context", "63", *qconfig, *words)


@pytest.mark.parametrize(
    ("address", "size", "alignment", "aligned"),
    [(131104, 32, 64, 64), (131072, 32, 64, 64), (100, 10, 32, 32), (40, 40, 64, 128), (120000, 2048, 64, 2048),
     (0, 4096, 32, 4096), (4064, 32, 4096, 4096)],
)  # fmt: skip
def test_r5_r8_a_transfer_has_the_alignment_of_its_tensor(
    cli: Cli, address: int, size: int, alignment: int, aligned: int
) -> None:
    made = cli.json(cli.listed(move(dram_addr=address, num_elements=size, alignment=alignment)))
    assert made["npu"]["dram_bytes_read"] == aligned


def test_r1_r6_the_tiles_of_the_seed(cli: Cli) -> None:
    """FFN weights of 4096 x 1024 x 4 bits with an alignment of their own, 4096 activations of 8 bits."""
    for command, size in (
        (move(qbits=4, num_elements=4096 * 1024, alignment=32), 2_097_152),
        (move(tensor_role="activation", alignment=32), 4096),
        (move(qbits=4), 2048),
        (move(qbits=4, num_elements=3, alignment=1), 2),
        (move(qbits=2, num_elements=5, alignment=1), 2),
    ):
        assert cli.json(cli.listed(command))["npu"]["dram_bytes_read"] == size


def test_alignment_changes_bytes_and_cycles(cli: Cli) -> None:
    rows = {"rows": 64, "num_elements": 64 * 32, "dram_stride": 96}
    made = {a: cli.json(cli.listed(move(alignment=a, **rows))) for a in (32, 64, 512)}
    read = {alignment: one["npu"]["dram_bytes_read"] for alignment, one in made.items()}
    assert read[32] == 64 * 32
    oracle = {a: sum(-(-(96 * i + 32) // a) * a - 96 * i // a * a for i in range(64)) for a in read}
    assert read == oracle
    assert made[32]["cycles"] <= made[64]["cycles"] < made[512]["cycles"]


def test_a_move_carries_the_role_of_its_tensor() -> None:
    config = NpuConfig(dram=DramConfig(size=1 << 20))
    for index, role in enumerate(("activation", "weight", "kv")):
        made = run(load({"schema": 1, "commands": [move(tensor_role=role)]}, config), config)
        (begun,) = made.records[made.records["what"] == What.DMA_BEGIN]
        assert int(begun["aux"]) // ROLE & 3 == index


def test_cmdq_names_weights(cli: Cli) -> None:
    out = cli.folder / "out"
    model = cli.model("gemm", 64, 64, 64)
    cli.json(model, "--granularity", "tile", "--report", str(out))
    moves = [one for one in json.loads((out / "cmdq.json").read_text())["commands"] if "tensor_role" in one]
    loads = [one["tensor_role"] for one in moves if one["opcode"] == "DMA_LOAD_TILE"]
    assert loads[:2] == ["activation", "weight"] and set(loads) == {"activation", "weight"}
    assert {one["tensor_role"] for one in moves if one["opcode"] == "DMA_STORE_TILE"} == {"activation"}


def test_r4_a_tile_over_several_banks_has_them_alone(cli: Cli) -> None:
    big = move(qbits=4, num_elements=4096 * 1024, id=1)
    gemm = {"opcode": "GEMM_T", "tile": [64, 64, 64], "in": [{"bank": 0, "offset": 0, "dtype": "INT8"},
            {"bank": 1, "offset": 0, "dtype": "INT8"}], "out": {"bank": 2, "offset": 0, "dtype": "INT32"}}  # fmt: skip
    assert cli.json(cli.listed(big))["npu"]["dram_bytes_read"] == 2_097_152
    error = cli.refused(cli.listed(big, move(spm_bank=1, dram_addr=1 << 22), gemm))
    assert "266240 bytes in a bank of 262144, 4096 over" in error
    assert "legal tile: num_elements 524288 of commands[0]" in error
    cli.json(cli.listed(move(qbits=4, num_elements=524288), move(spm_bank=1, dram_addr=1 << 22), gemm))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"dtype": "INT4"}, "CHOICE: commands[0].qbits = 8: INT4 has 4 bits"),
        ({"tensor_role": "activation", "qbits": 2}, "CHOICE: commands[0].qbits = 2: must be one of 4, 8, 16, 32"),
        ({"tensor_role": "bias"}, "CHOICE: commands[0].tensor_role = 'bias'"),
        ({"alignment": 48}, "RANGE: commands[0].alignment = 48: must be a power of two"),
        ({"alignment": 8192}, "tile_n 8192: must be a power of two up to 4096"),
        ({"spm_offset": 4016}, "RANGE: commands[0].spm_offset = 4016: must be a multiple of 32"),
        ({"spm_bank": 8}, "RANGE: commands[0].spm_bank = 8"),
        ({"dram_addr": 1 << 40}, "COMMAND: commands[0] = 'DMA_LOAD_TILE': "),
        ({"tensor_role": "kv", "head_dim": 64, "num_elements": 100}, "RANGE: commands[0].num_elements = 100"),
        ({"tensor_role": "kv", "head_dim": 3, "qbits": 4, "num_elements": 3}, "RANGE: commands[0].head_dim = 3"),
        ({"num_elements": 1 << 19, "bank_mask": 1}, "legal tile: tile_m 1, tile_k 262144"),
    ],
)
def test_r25_a_list_is_refused_with_code_field_and_value(cli: Cli, change: dict[str, Any], field: str) -> None:
    assert field in cli.refused(cli.listed(move(**change)))


def test_r7_offsets_of_the_seed(cli: Cli) -> None:
    for offset in (8000, 4000):
        cli.json(cli.listed(move(spm_offset=offset)))


def test_r9_rates_and_costs_are_keys(cli: Cli) -> None:
    gemm = cli.model("gemm", 256, 256, 256)
    mapping = ["--set", "compiler.loop_order=output"]  # the same at each speed
    base = ["--sim-level", "L1", "--precision", "fp16", "--set", "npu.spm.port=65536", *mapping]
    cycles = [
        cli.json(gemm, *base, *more)["cycles"]
        for more in ([], ["--set", "npu.te.f_a=16,8,4,1,1"], ["--set", "npu.te.f_w=16,8,4,4,1"])
    ]
    assert cycles[1] > cycles[0] > cycles[2]
    mlp = cli.model("decoder")
    slow = cli.json(mlp, "--sim-level", "L1", "--set", "npu.ve.operations.softmax=600")["cycles"]
    assert slow > cli.json(mlp, "--sim-level", "L1")["cycles"]
    flat = cli.json(mlp, "--sim-level", "L1", "--set", "npu.ve.f_a=64,32,16,4,1")["cycles"]
    assert flat > cli.json(mlp, "--sim-level", "L1")["cycles"]


def test_r3_packed_operands_are_unpacked(cli: Cli) -> None:
    narrow = "qbits_weight_default: 4\n"
    packed = built_in(cli, narrow)
    off, on = (built_in(cli, f"{narrow}packing: {{use_packed_int4: {used}}}\n")["cycles"] for used in ("false", "true"))
    assert packed["cycles"] == off < on
    assert on == built_in(cli, narrow, "--set", "npu.te.unpack_int4=2", "--set", "npu.ve.unpack_int4=2")["cycles"]
    wide = built_in(cli, narrow + "packing: {mode: unpacked_byte}\n")
    matrices = 4 * 4096 * 4096 + 3 * 4096 * 11008
    assert wide["npu"]["dram_bytes_read"] - packed["npu"]["dram_bytes_read"] >= matrices // 2


def test_r6_alignment_of_roles_rules_built_in_models_and_onnx(cli: Cli) -> None:
    text = "alignment: {{default_alignment_bytes: {0}, weight_alignment_bytes: {0}, kv_alignment_bytes: {0}}}\n"
    for words in (["llama2-7b", "--layers", "1", "--context", "63"], [cli.model("cnn")]):
        read = [
            cli.json(*words, "--qconfig", cli.file("q.yaml", text.format(size)))["npu"]["dram_bytes_read"]
            for size in (32, 64, 4096)
        ]
        assert read[0] <= read[1] < read[2]
        assert cli.json(*words)["npu"]["dram_bytes_read"] == read[1]


def test_the_page_shows_them(cli: Cli) -> None:
    first = PAGE.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    qconfig = cli.file("q.yaml", first)
    made = cli.json("llama2-7b", "--layers", "4", "--context", "63", "--qconfig", qconfig)["llm"]
    assert (made["qbits_weight"], made["qbits_kv"]) == ([4, 8], [4, 8])
    assert SEED_WIDTHS.startswith("bitwidths:\n  weight: [2, 4, 8]\n") and "head_2: { kv: 8 }" in SEED_CACHES


@pytest.mark.parametrize("text", [SEED_WIDTHS + SEED_CACHES, *slow(SEED_WIDTHS, SEED_CACHES)])
def test_the_files_of_the_seeds_are_taken_verbatim(cli: Cli, text: str) -> None:
    made = built_in(cli, text, layers="6")["llm"]
    caches = SEED_CACHES in text
    assert [one["qbits_kv"] for one in made["kv_layers"]] == ["4"] * 4 + (["8", "4/8"] if caches else ["4", "4"])
    cli.json(cli.model("mlp"), "--sim-level", "IA", "--qconfig", cli.file("q.yaml", SEED_WIDTHS))


@pytest.mark.parametrize("name", data_files("qconfigs"))
def test_shipped_files_are_taken_by_name(cli: Cli, name: str) -> None:
    text = (Path(yaml_file.__file__).parent.parent / "qconfigs" / f"{name}.yaml").read_text(encoding="utf-8")
    assert load_qconfig(name) == load_qconfig(cli.file("copy.yaml", text))
    layers = ("llama2-7b", "--layers", "6", "--context", "63", "--sim-level", "IA_TIMING")
    by_name, plain = cli.json(*layers, "--qconfig", name)["llm"], cli.json(*layers)["llm"]
    assert by_name == plain if name == "allowed-widths" else by_name != plain
    assert text.endswith({"allowed-widths": SEED_WIDTHS, "kv-by-head": SEED_CACHES}.get(name, ""))


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "offset"), [(4, 196_928), (8, 393_856)])
def test_r15_where_a_token_of_a_head_lies(cli: Cli, bits: int, offset: int) -> None:
    """H 32, T_max 1024, D 128: token 5 of head 3, seen from where the cache of the layer begins."""
    words = ("--layers", "1", "--context", "5", "--t-max", "1024", "--qbits-kv", str(bits), "--granularity", "tile")
    cli.json("llama2-7b", *words, "--report", str(cli.folder / "out"))
    commands = json.loads((cli.folder / "out" / "cmdq.json").read_text(encoding="utf-8"))["commands"]
    kv = [one for one in commands if one.get("tensor_role") == "kv"]
    stores = sorted(one["dram_addr"] for one in kv if one["opcode"] == "DMA_STORE_TILE")
    row = 128 * bits // 8
    keys = [address - 5 * row for address in stores[:32]]
    assert len(stores) == 64 and keys[3] + 5 * row - keys[0] == offset
    loads = {one["dram_addr"] for one in kv if one["opcode"] == "DMA_LOAD_TILE"}
    assert set(keys) <= loads  # each head is read from its token 0 on
    dram = f"npu.dram.size={1 << 36}"
    again = cli.json(str(cli.folder / "out" / "cmdq.json"), "--set", dram)  # whose tiles lie in several banks (R4)
    assert again["npu"]["completed"] == again["npu"]["accepted"] > len(commands) // 2
    refused = cli.refused(str(cli.folder / "out" / "cmdq.json"))  # in less DRAM
    assert refused.count("\n") == 1 and re.search(r"; and [1-9][0-9]+ more$", refused.strip()) and len(refused) < 2000


def test_r15_rows_that_do_not_end_at_a_byte(cli: Cli) -> None:
    """6 elements of 2 bits: 12 bits, padded to 2 bytes where the QConfig says so."""
    path = cli.folder / "odd.onnx"
    onnx.save(decoder_kv(width=24, heads=4, kv_heads=2, vocab=32), path)
    of_heads = "--set", "npu.kv_quant.scales=head"  # as of tile commands
    words = (str(path), "--prompt", "3,1,4", "--generate", "4", *of_heads)
    for more in (("--qbits-kv", "2"), ("--qconfig", cli.file("odd.yaml", "qbits_kv_default: 2\n"))):
        assert "a row of 6 x 2 bits does not end at a byte: kv.pad_rows: true" in cli.refused(*words, *more, code=64)
    padded = cli.file("padded.yaml", "qbits_kv_default: 2\nkv: {pad_rows: true}\n")
    made = {
        level: cli.json(*words, "--qconfig", padded, *level.split())["generate"]
        for level in ("--sim-level IA", "--mode loose", "--mode tight", "--mode tight --granularity tile")
    }
    first = made["--sim-level IA"]
    for one in made.values():
        assert (one["tokens"], one["outputs_sha256"]) == (first["tokens"], first["outputs_sha256"])
        assert [layer["kv_bytes_alloc"] for layer in one["kv_layers"]] == [2 * 2 * 7 * 2] * 2
        assert one["kv_bytes_used"] == 2 * 2 * 2 * 6 * 2


def test_activations_have_a_width(cli: Cli) -> None:
    mlp = cli.model("mlp")
    found = {
        bits: cli.json(mlp, "--sim-level", "IA", "--qconfig", cli.file("q.yaml", f"qbits_activation_default: {bits}\n"))
        for bits in (32, 16, 8)
    }
    products = {bits: one["model"]["precision"]["products"] for bits, one in found.items()}
    assert (products[32], products[16]) == (["fp32"], ["fp16"])
    assert all("int8" in product for product in products[8])
    kept = cli.file("q.yaml", "qbits_activation_default: 8\noverride: {layer_1: {activation: 32}}\n")
    assert "fp32" in cli.json(mlp, "--sim-level", "IA", "--qconfig", kept)["model"]["precision"]["products"]
    eight = built_in(cli, "qbits_activation_default: 8\nqbits_weight_default: 8\n")
    sixteen = built_in(cli, "qbits_weight_default: 8\n")
    assert (eight["llm"]["qbits_activation"], sixteen["llm"]["qbits_activation"]) == (8, 16)
    assert eight["npu"]["dram_bytes_read"] < sixteen["npu"]["dram_bytes_read"]


def test_weights_of_built_in_layers_differ(cli: Cli) -> None:
    both = built_in(cli, "qbits_weight_default: 8\n", layers="2")
    one = built_in(cli, "qbits_weight_default: 8\nlayer_1: {weight: 4}\n", layers="2")
    assert one["llm"]["qbits_weight"] == [4, 8]
    matrices = 4 * 4096 * 4096 + 3 * 4096 * 11008
    assert both["llm"]["weight_bytes"] - one["llm"]["weight_bytes"] == matrices // 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bitwidths: {weight: [3]}\n", ":1: bitwidths.weight: [3]: must be a list of 2, 4, 8, 16, 32"),
        ("qbits_kv_default: 32\n", ":1: qbits_kv_default: 32 bits: must be one of 2, 4, 8, 16"),
        ("kv: {pad_rows: 1}\n", ":1: kv.pad_rows: 1: must be true or false"),
        (
            "packing:\n  mode: unpacked_byte\n  use_packed_int4: true\n",
            ":3: packing.use_packed_int4: true: packing.mode",
        ),
        ("qbits_activation_default: 4\nqbits_weight_default: 8\n", "E_QBITS: llama2-7b: activations of 4 bits"),
        ("alignment: {kv_alignment_bytes: 8192}\n", "E_ALIGN: QConfig alignment.kv_alignment_bytes 8192"),
        ("spm: {num_banks: 4}\n", "E_BANK: QConfig spm.num_banks 4: the device has 8"),
    ],
)
def test_r25_a_key_of_a_built_in_model_acts_or_is_refused(cli: Cli, text: str, message: str) -> None:
    error = cli.refused("llama2-7b", "--layers", "1", "--qconfig", cli.file("q.yaml", text))
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "qbits_activation_default: 4\n",
            "qbits_activation_default: 4 bits: products of an ONNX model take 8, 16 or 32",
        ),
        ("layer_0: {activation: 16}\n", "override.layer_0.activation: 16 bits: layers differ under int8"),
        ("qbits_activation_default: 8\nlayer_7: {activation: 16}\n", "override.layer_7.activation: the model has 3"),
        ("alignment: {weight_alignment_bytes: 8192}\n", "E_ALIGN: QConfig alignment.weight_alignment_bytes 8192"),
    ],
)
def test_r25_a_key_of_an_onnx_model_acts_or_is_refused(cli: Cli, text: str, message: str) -> None:
    assert message in cli.refused(cli.model("mlp"), "--qconfig", cli.file("q.yaml", text))


def test_r3_logical_sizes_are_refused_where_rows_are_padded(cli: Cli) -> None:
    """5 rows of 3 elements of 4 bits: 8 bytes as bits, 10 in rows."""
    gemm, text = cli.model("gemm", 4, 3, 5), "qbits_weight_default: 4\n"
    error = cli.refused(gemm, "--qconfig", cli.file("q.yaml", text + "packing: {mode: logical}\n"))
    assert "E_PACK: QConfig packing.mode logical: tensor" in error
    assert "has 8 bytes, but its rows of 3 x 4 bits begin at bytes on the device, 10 in all" in error
    cli.json(gemm, "--qconfig", cli.file("q.yaml", text + "packing: {mode: packed_rows}\n"))
    cli.json(cli.model("mlp"), "--qconfig", cli.file("q.yaml", text + "packing: {mode: logical}\n"))


def test_r25_r26_capacity_is_checked_before_a_run(cli: Cli) -> None:
    words = [
        "llama2-13b",
        "--context",
        "8191",
        "--requests",
        "16",
        "--qbits-kv",
        "16",
        "--set",
        "npu.dram.size=80000000000",
    ]
    error = cli.refused(*words)
    assert "E_CAPACITY: llama2-13b: weights 26.0 GB and KV 107.4 GB" in error and "133.4 GB" in error


@pytest.mark.parametrize(
    ("tensor", "code", "field", "value"),
    [
        (TensorIR("c", Role.KV, (1, 1, 8, 8), DataType.INT8, storage_class=SPM), "E_STORAGE", "storage_class", SPM),
        (TensorIR("x", Role.ACTIVATION, (8, 8), DataType.INT2), "E_QBITS", "qbits", 2),
    ],
)
def test_r10_r12_ir(tensor: TensorIR, code: str, field: str, value: object) -> None:
    with pytest.raises(IrError) as caught:
        verify(Graph("g", {tensor.id: tensor}))
    assert (caught.value.code, caught.value.field, caught.value.value) == (code, field, value)


def test_descriptors_that_a_ring_fetches_are_read_from_dram(cli: Cli) -> None:
    mlp = cli.model("mlp")
    loose, tight = (cli.json(mlp, "--mode", mode)["npu"] for mode in ("loose", "tight"))
    assert loose["dram_bytes_read"] - tight["dram_bytes_read"] == 64 * loose["accepted"]


@pytest.mark.parametrize(("qbits", "size"), [(2, 1_048_576), (4, 2_097_152), (8, 4_194_304), (16, 8_388_608)])
def test_r16_footprint_of_a_layer(cli: Cli, qbits: int, size: int) -> None:
    """H 32, T 1024, D 128: keys, and as much of values."""
    made = cli.json("llama2-7b", "--layers", "2", "--context", "1023", "--qbits-kv", str(qbits))["llm"]
    assert [one["kv_bytes_alloc"] for one in made["kv_layers"]] == [2 * size] * 2
