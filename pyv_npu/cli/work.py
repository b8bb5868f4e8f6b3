"""Options that say what is run: a table of which workload takes which, and the workload that a command line means."""

import argparse
from collections.abc import Collection
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyv_npu.boot import shipped_programs
from pyv_npu.cli.options import MODE
from pyv_npu.errors import UsageError

if TYPE_CHECKING:
    from pyv_npu.config import Config
    from pyv_npu.workloads.built_in import BuiltIn
    from pyv_npu.workloads.decoder import Generation
    from pyv_npu.workloads.model import Choices
    from pyv_npu.workloads.workload import Workload


class Kind(Enum):
    """What can be run."""

    FIRMWARE = "firmware"
    COMMAND_LIST = "command list"
    MODEL = "model"
    TIMED = "model, timed only"
    DECODER = "decoder that generates"
    BUILT_IN = "built-in model"


RUN = tuple(Kind)
ON_CORE = (Kind.FIRMWARE, Kind.MODEL, Kind.DECODER)
"""What `compare` runs in both modes."""
COMPILED = (Kind.MODEL, Kind.DECODER)

_MODEL = (Kind.MODEL, Kind.TIMED)
_ONNX = (*_MODEL, Kind.DECODER)
_BUILT_IN = (Kind.BUILT_IN,)
_DECODER = (Kind.DECODER,)
_CACHED = (Kind.DECODER, Kind.BUILT_IN)


class Row(NamedTuple):
    """An option, and the workloads that it applies to."""

    option: str
    kinds: tuple[Kind, ...]
    settings: dict[str, Any]
    """Of `add_argument`; without an option the value is None."""
    reason: str = ""
    """Why others do not take it; empty: that of `_reason`."""

    @property
    def name(self) -> str:
        """Its attribute of the parsed arguments."""
        return self.option.removeprefix("--").replace("-", "_")


_COMPILING = "says how a model is compiled, and no ONNX model is named"
_GENERATING = "a decoder that generates takes --passes, --qconfig and --precision int8 of the options of models"
_NUMBER = {"type": int, "metavar": "N"}
_TABLE: dict[str, tuple[Row, ...]] = {
    "models": (
        Row("--shape", _MODEL, {"action": "append", "metavar": "NAME=1,128", "help": "shape of a model's input"}),
        Row("--passes", _ONNX, {"metavar": "LIST", "help": "passes to run, or with a minus not to run"}),
        Row("--inputs", (Kind.MODEL,), {"type": Path, "metavar": "FILE.npz",
            "help": "values of a model's inputs; others are random"},
            "this run takes no inputs: it computes nothing, or has tokens"),
        Row("--granularity", _MODEL, {"choices": ("macro", "tile"), "help": "commands for products"}),
        Row("--precision", _ONNX, {"choices": ("fp32", "fp16", "bf16", "int8"), "help": "convert the model"}),
        Row("--calibration", _ONNX, {"action": "append", "type": Path, "metavar": "FILE.npz",
            "help": "inputs for --precision int8"}),
        Row("--qconfig", (*_ONNX, Kind.BUILT_IN), {"type": Path, "metavar": "FILE.yaml",
            "help": "how many bits weights have"}),
        Row("--timing-only", (Kind.TIMED, Kind.BUILT_IN), {"action": "store_true", "default": None,
            "help": "time a model's commands: no core, no numbers, no reference"},
            "is for ONNX models; firmware has a core, a command list is never computed"),
    ),
    "built-in decoder models (`pyv-npu info` lists them)": (
        Row("--phase", _BUILT_IN, {"choices": ("prefill", "decode"),
            "help": "take a prompt, or make one token (default)"}),
        Row("--context", _BUILT_IN, {**_NUMBER,
            "help": "tokens in the caches before the token that is decoded (default 1024)"}),
        Row("--tokens", _BUILT_IN, {**_NUMBER, "help": "tokens of the prompt of a prefill (default 512)"}),
        Row("--requests", _BUILT_IN, {**_NUMBER, "help": "conversations that are served together (default 1)"}),
        Row("--layers", _BUILT_IN, {**_NUMBER, "help": "first N layers only"}),
        Row("--qbits-weight", _BUILT_IN, {**_NUMBER, "help": "bits of a weight: 2, 4, 8 or 16 (default)"}),
    ),
    "ONNX decoders with a key/value cache (docs/llm.md)": (
        Row("--generate", _DECODER, {**_NUMBER, "help": "make N tokens after the prompt"}),
        Row("--prompt", _DECODER, {"metavar": "N,N", "help": "tokens that are there; they are taken at once"}),
        Row("--given", _DECODER, {"metavar": "N,N",
            "help": "the first of the new tokens; the others are chosen: the largest logit"}),
        Row("--t-max", _CACHED, {**_NUMBER, "help": "tokens that the caches hold; default: what is needed"}),
        Row("--qbits-kv", _CACHED, {"metavar": "N[,N]",
            "help": "bits of keys and values: 2, 4, 8, 16; built-in models: 4, or a list that runs all"}),
    ),
}  # fmt: skip


def arguments(parser: argparse.ArgumentParser, kinds: Collection[Kind]) -> None:
    """Add the options of the workloads that a command runs."""
    parser.set_defaults(**{row.name: None for rows in _TABLE.values() for row in rows})
    for title, rows in _TABLE.items():
        chosen = [row for row in rows if set(row.kinds) & set(kinds)]
        group = parser.add_argument_group(title) if chosen else None
        for row in chosen:
            assert group is not None
            group.add_argument(row.option, **row.settings)


def workload(args: argparse.Namespace, config: "Config", kinds: Collection[Kind], verb: str) -> "Workload[Any]":
    """What a command line means. UsageError for an option that it does not take."""
    return workloads(args, config, kinds, verb)[0]


def workloads(args: argparse.Namespace, config: "Config", kinds: Collection[Kind], verb: str) -> "list[Workload[Any]]":
    """As `workload`; a list of widths of keys and values is several."""
    program = config.run.program
    kind = _kind(args, program)
    if kind not in kinds:
        if kind is Kind.BUILT_IN:
            raise UsageError(
                f"{program}: {verb} takes no built-in model; `pyv-npu run {program}` times it, "
                f"with --mode loose or tight through firmware"
            )
        kind = Kind.FIRMWARE if Kind.FIRMWARE in kinds else Kind.MODEL
    for rows in _TABLE.values():
        for row in rows:
            if kind not in row.kinds and getattr(args, row.name) is not None:
                raise UsageError(f"{row.option}: {_reason(row, kind, kinds)}; drop it")
    return _made(args, program, kind)


def _kind(args: argparse.Namespace, program: str) -> Kind:
    if program.endswith(".onnx"):
        if args.generate is not None:
            return Kind.DECODER
        return Kind.TIMED if args.timing_only else Kind.MODEL
    if program.endswith(".json"):
        return Kind.COMMAND_LIST
    if program not in shipped_programs():
        from toolchain.decoders.shapes import MODELS

        if program in MODELS:
            return Kind.BUILT_IN
    return Kind.FIRMWARE


def _reason(row: Row, kind: Kind, kinds: Collection[Kind]) -> str:
    if (row.reason and kind is not Kind.FIRMWARE) or row.name == "timing_only":
        return row.reason
    if row in _TABLE["models"]:
        return _GENERATING if kind is Kind.DECODER else _COMPILING
    found = []
    if Kind.BUILT_IN in row.kinds and Kind.BUILT_IN in kinds:
        found.append("for built-in models (llama2-7b, ...)")
    if Kind.DECODER in row.kinds:
        found.append("for ONNX decoders that run with --generate N and --prompt")
    return f"is {' and '.join(found)}"


# -- from options to workloads -----------------------------------------------------------------------------------------


def _made(args: argparse.Namespace, program: str, kind: Kind) -> "list[Workload[Any]]":
    if kind is Kind.FIRMWARE:
        from pyv_npu.workloads.firmware import Firmware

        return [Firmware(program)]
    if kind is Kind.COMMAND_LIST:
        from pyv_npu.workloads.command_list import CommandList

        return [CommandList(program)]
    if kind is Kind.MODEL:
        from pyv_npu.workloads.model import Model

        return [Model(Path(program), choices(args), args.inputs)]
    if kind is Kind.TIMED:
        from pyv_npu.workloads.model import TimedModel

        return [TimedModel(Path(program), choices(args))]
    return [_generation(args, program)] if kind is Kind.DECODER else [*_built_in(args, program)]


def choices(args: argparse.Namespace) -> "Choices":
    """How the command line wants a model to be compiled; UsageError for a shape that is none."""
    from pyv_npu.workloads.model import Choices

    shapes = {}
    for text in args.shape or ():
        name, equals, dims = text.rpartition("=")
        if not (equals and name and all(dim.isdecimal() and 0 < int(dim) < 1 << 31 for dim in dims.split(","))):
            raise UsageError(f"--shape {text}: must have the form NAME=1,128, every dimension 1..{(1 << 31) - 1}")
        shapes[name] = tuple(int(dim) for dim in dims.split(","))
    if args.calibration and args.precision != "int8":
        raise UsageError("--calibration: shows int8 the ranges of the model; give --precision int8 too, or drop it")
    return Choices(
        shapes, args.passes or "all", args.granularity or "macro", args.precision or "", tuple(args.calibration or ()),
        args.qconfig,
    )  # fmt: skip


def _generation(args: argparse.Namespace, program: str) -> "Generation":
    from pyv_npu.workloads.decoder import Generation
    from pyv_npu.workloads.generation import GenerationRequest

    if args.precision not in (None, "int8"):
        raise UsageError(f"--precision: {_GENERATING}; drop it")
    if args.calibration and args.precision is None:
        raise UsageError(f"--calibration: {_GENERATING}; drop it")
    if args.prompt is None:
        raise UsageError("--generate: needs the tokens of a prompt, --prompt 3,1,4")
    if args.qbits_kv is not None and not args.qbits_kv.isdecimal():
        raise UsageError(f"--qbits-kv {args.qbits_kv}: must be one of 2, 4, 8, 16 for a decoder that computes")
    bits = None if args.qbits_kv is None else int(args.qbits_kv)
    request = GenerationRequest(
        _tokens(args, "prompt"), args.generate, _tokens(args, "given"), args.t_max, bits, args.passes or "all",
        args.qconfig, args.precision or "", tuple(args.calibration or ()),
    )  # fmt: skip
    return Generation(Path(program), request)


def _tokens(args: argparse.Namespace, name: str) -> tuple[int, ...]:
    text = getattr(args, name)
    if text is None:
        return ()
    if not all(token.isdecimal() for token in text.split(",")):
        raise UsageError(f"--{name} {text}: must be a list of tokens such as 3,1,4")
    return tuple(map(int, text.split(",")))


def _built_in(args: argparse.Namespace, program: str) -> "list[BuiltIn]":
    """One for each width of keys and values."""
    from pyv_npu.workloads.built_in import BuiltIn, Phase, Request

    phase = Phase(args.phase or "decode")
    for name, other in (("context", Phase.PREFILL), ("tokens", Phase.DECODE)):
        if phase is other and getattr(args, name) is not None:
            raise UsageError(f"--{name}: says nothing about phase {phase.value}; drop it or choose the other phase")
    fields = {"context": "context", "tokens": "tokens", "requests": "requests", "layers": "layers", "t_max": "t_max",
              "qbits_weight": "weight_bits"}  # fmt: skip
    given = {field: getattr(args, name) for name, field in fields.items() if getattr(args, name) is not None}
    request, on_core = Request(program, phase, **given), MODE in dict(args.settings)
    if args.qconfig is not None:
        for option, value in (("--qbits-kv", args.qbits_kv), ("--qbits-weight", args.qbits_weight)):
            if value is not None:
                raise UsageError(f"{option}: --qconfig says it already; give one of them")
        return [BuiltIn(request, on_core, args.qconfig)]
    widths = ("4" if args.qbits_kv is None else args.qbits_kv).split(",")
    if not all(width.isdecimal() for width in widths) or len(set(widths)) != len(widths):
        raise UsageError(
            f"--qbits-kv {args.qbits_kv}: must be 2, 4, 8 or 16, or a list of different ones such as 4,8,16"
        )
    if on_core and len(widths) > 1:
        raise UsageError("--qbits-kv: one width with --mode; a list is swept without a core")
    return [BuiltIn(request._replace(kv_bits=int(width)), on_core) for width in widths]
