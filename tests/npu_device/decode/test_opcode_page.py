"""docs/opcodes.md against the device: every opcode and function has a row, whose shapes are those that it decodes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tile_oracle import FORMS

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.opcodes import FUNCTIONS, DataType, Eltwise, Norm, Opcode
from npu_device.operations.checks import DescriptorError
from npu_device.operations.macro.table import MACROS
from npu_device.operations.tile_form import OPERATIONS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "opcodes.md").read_text(encoding="utf-8")
M, N, K = 6, 10, 14
KH, KW, SH, SW, TOP, LEFT, BOTTOM, RIGHT = 3, 2, 2, 1, 1, 0, 0, 1
SIZES = {
    "M": M, "N": N, "K": K, "M*N": M * N, "1": 1, "2": 2,
    "P*Q": ((M + TOP + BOTTOM - KH) // SH + 1) * ((N + LEFT + RIGHT - KW) // SW + 1),
}  # fmt: skip


def table(title: str) -> list[list[str]]:
    body = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line[:1] == "|"]
    return rows[2:]


def commands(head: str) -> Iterator[tuple[Opcode, int, bool]]:
    """(opcode, function, in1_nk) of the first cell of a row."""
    if head == "ELTWISE, the others":
        heads = [row[0] for row in TILE if row[0].startswith("ELTWISE ")]
        named = {function for head in heads for _, function, _ in commands(head)}
        yield from ((Opcode.ELTWISE, function, False) for function in Eltwise if function not in named)
        return
    words = re.findall(r"\w+", head)
    opcode = Opcode[words[0]]
    functions = FUNCTIONS.get(opcode)
    if words[1:] == ["in1_nk"]:
        yield opcode, 0, True
    elif len(words) > 1 and words[1] in Opcode.__members__ and not (functions and words[1] in functions.__members__):
        yield from ((Opcode[word], function, False) for word in words for function in FUNCTIONS.get(Opcode[word], [0]))
    elif len(words) > 1:
        assert functions is not None
        yield from ((opcode, functions[word], False) for word in words[1:])
    else:
        yield from ((opcode, function, False) for function in (functions or [0]))


TILE = table("Tile form")
ROWS = [pytest.param(*command, row, id=f"{row[0]} {int(command[1])}") for row in TILE for command in commands(row[0])]


def accepted(opcode: Opcode, function: int, in1_nk: bool) -> Descriptor:
    """A descriptor of these sizes that the device takes."""
    pool = {"param0": int.from_bytes(bytes((KH, KW, SH, SW)), "little"),
            "param1": int.from_bytes(bytes((TOP, LEFT, BOTTOM, RIGHT)), "little")}  # fmt: skip
    kinds = (DataType.NONE, DataType.FP32, DataType.INT32, DataType.UINT8)
    sizes = {"tile_m": M, "tile_n": N, "tile_k": K}
    for in0 in kinds:
        for in1 in kinds:
            for out in kinds:
                for kv in kinds[:2]:
                    types = {"type_in0": in0, "type_in1": in1, "type_out": out, "type_kv": kv}
                    extra = pool if opcode is Opcode.POOL else {}
                    d = Descriptor(opcode=opcode, function=function, in1_nk=in1_nk, **types, **sizes, **extra)
                    try:
                        FORMS[opcode][1](d)  # type: ignore[misc]
                    except DescriptorError:
                        continue
                    return d
    raise AssertionError(f"{opcode.name} {function}: no types of these are taken")


def shape(cell: str) -> tuple[int, int] | None:
    found = re.match(r"(\S+) x (\w+)", cell)
    return (SIZES[found[1]], SIZES[found[2]]) if found else None


@pytest.mark.parametrize(("opcode", "function", "in1_nk", "row"), ROWS)
def test_the_shapes_of_a_tile_command(opcode: Opcode, function: int, in1_nk: bool, row: list[str]) -> None:
    operation = OPERATIONS[opcode]
    d = accepted(opcode, function, in1_nk)
    matrices = {operand.name: operand.matrix(d) for operand in operation.forms[function].operands}
    shapes = {name: (matrix.rows, matrix.columns) for name, matrix in matrices.items()}
    assert [shapes.get(name) for name in ("in0", "in1", "out")] == [shape(cell) for cell in row[1:4]]
    marked = {name: "DRAM" in cell for name, cell in zip(("in0", "in1", "out"), row[1:4], strict=True)}
    assert [name for name, dram in marked.items() if dram] == ([operation.in_dram] if operation.in_dram else [])


def test_every_command_has_one_row() -> None:
    listed = [(opcode, function) for row in TILE for opcode, function, in1_nk in commands(row[0]) if not in1_nk]
    wanted = [(opcode, function) for opcode in Opcode if OPERATIONS[opcode].forms
              for function in FUNCTIONS.get(opcode, [0])]  # fmt: skip
    assert sorted(set(listed)) == sorted((opcode, int(function)) for opcode, function in wanted)
    assert len(listed) == len(set(listed))
    assert {Norm.LAYER, Norm.RMS} == {function for opcode, function in listed if opcode is Opcode.LAYERNORM}


def test_every_macro_form_has_a_row() -> None:
    named = [name for row in table("Macro form") for name in re.findall(r"\w+", row[0])]
    assert sorted(named) == sorted(opcode.name for opcode in MACROS)
