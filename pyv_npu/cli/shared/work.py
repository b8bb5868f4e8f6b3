"""Workload options: table of the options of each workload type, and creation of the workload of a command line."""

import argparse
from collections.abc import Collection, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from pyv_npu.boot import MODEL_SUFFIXES, find_program, is_example, model_file, shipped_programs
from pyv_npu.cli.shared import output
from pyv_npu.cli.shared.options import MODE
from pyv_npu.errors import UsageError
from pyv_npu.text import integer
from pyv_npu.workloads.firmware import Firmware
from toolchain.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    from pyv_npu.config import Config
    from pyv_npu.workloads.built_in import BuiltIn
    from pyv_npu.workloads.decoder import Generation
    from pyv_npu.workloads.model_file import Choices
    from pyv_npu.workloads.workload import Workload


class WorkloadType(Enum):
    """Workload types of the command line."""

    FIRMWARE = "firmware"
    COMMAND_LIST = "command list"
    MODEL = "model"
    TIMED = "model, timed only"
    DECODER = "decoder that generates"
    BUILT_IN = "built-in model"


_NO_NUMBER = float("nan")
RUN = tuple(WorkloadType)
ON_CORE = (WorkloadType.FIRMWARE, WorkloadType.MODEL, WorkloadType.DECODER, WorkloadType.BUILT_IN)
"""Workloads that `compare` runs in both modes."""
COMPILED = (WorkloadType.MODEL, WorkloadType.DECODER)

_MODEL = (WorkloadType.MODEL, WorkloadType.TIMED)
_ONNX = (*_MODEL, WorkloadType.DECODER)
_BUILT_IN = (WorkloadType.BUILT_IN,)
_DECODER = (WorkloadType.DECODER,)
_CACHED = (WorkloadType.DECODER, WorkloadType.BUILT_IN)


class OptionRow(NamedTuple):
    """Option, and the workload types that it applies to."""

    option: str
    kinds: tuple[WorkloadType, ...]
    settings: dict[str, Any]
    """Arguments of `add_argument`; the default of an option is None."""
    reason: str = ""
    """Error text for other workload types; empty for the text of `_reason`."""

    @property
    def name(self) -> str:
        """Attribute of the option in the parsed arguments."""
        return self.option.removeprefix("--").replace("-", "_")


_COMPILING = "says how a model is compiled, and no ONNX model is named"
_GENERATING = (
    "a decoder that generates takes --passes, --granularity, --submit, --qconfig and --precision int8 of the options "
    "of models"
)
KV_METHODS = (
    "fp16", "fp8_e4m3", "fp8_e5m2", "uniform8", "uniform4", "uniform2", "oaken", "kivi", "kvquant", "qserve", "atom",
    "tender", "per_token4", "grouped_heads", "rle", "delta", "sparse",
)  # fmt: skip
"""Names of `npu_device.kv_quant.methods.METHODS`, repeated here to avoid its import."""
_NUMBER = {"type": integer, "metavar": "N"}
_TABLE: dict[str, tuple[OptionRow, ...]] = {
    "models": (
        OptionRow("--shape", _MODEL, {"action": "append", "metavar": "NAME=1,128",
            "help": "shape of an input, or sizes of dimensions that the model names: batch=1,seq=128"}),
        OptionRow("--constant", _MODEL, {"action": "append", "metavar": "NAME=N",
            "help": "fix an input of one element before the model is compiled"}),
        OptionRow("--passes", (*_ONNX, WorkloadType.BUILT_IN), {"metavar": "LIST",
            "help": "passes to run, or with a minus not to run"}),
        OptionRow("--inputs", (WorkloadType.MODEL,), {"type": output.path, "metavar": "FILE.npz",
            "help": "values of a model's inputs; others are random"},
            "this run takes no inputs: it computes nothing, or has tokens"),
        OptionRow("--input", (WorkloadType.MODEL,), {"action": "append", "metavar": "NAME=FILE",
            "help": "one input: a .npy file, a picture, or a number for all its elements"},
            "this run takes no inputs: it computes nothing, or has tokens"),
        OptionRow("--granularity", (*_ONNX, WorkloadType.BUILT_IN), {"choices": ("macro", "tile"),
            "help": "commands for products"}),
        OptionRow("--submit", (WorkloadType.MODEL, WorkloadType.DECODER), {"choices": ("firmware", "generated"),
            "help": "who submits: firmware (default), or code that is generated for the model"}),
        OptionRow("--precision", _ONNX, {
            "choices": ("fp32", "fp16", "bf16", "int8", "fp8", "fp8_e4m3fn", "fp8_e5m2"),
            "help": "convert the model; fp8 is fp8_e4m3fn"}),
        OptionRow("--calibration", _ONNX, {"action": "append", "type": output.path, "metavar": "FILE.npz|DIR|N",
            "help": "inputs for --precision int8 and fp8: files, folders, or a number of random ones (default 4)"}),
        OptionRow("--calibration-method", _ONNX, {"metavar": "METHOD",
            "help": "ranges from inputs: minmax (default), percentile (99.99), percentile:P or entropy"}),
        OptionRow("--qconfig", (*_ONNX, WorkloadType.BUILT_IN), {"type": output.path, "metavar": "FILE.yaml",
            "help": "how many bits weights, activations, keys and values have; or a name that `pyv-npu info` lists"}),
        OptionRow("--timing-only", (WorkloadType.FIRMWARE, WorkloadType.TIMED, WorkloadType.BUILT_IN), {
            "action": "store_true", "default": None,
            "help": "the NPU computes no values; of an ONNX model the commands alone, without firmware and reference"},
            "is for models and firmware; a command list is never computed"),
    ),
    "built-in decoder models (`pyv-npu info` lists them)": (
        OptionRow("--phase", _BUILT_IN, {"choices": ("prefill", "decode"),
            "help": "take a prompt, or make one token (default)"}),
        OptionRow("--context", _BUILT_IN, {**_NUMBER,
            "help": "tokens in the caches before the token that is decoded (default 1024)"}),
        OptionRow("--tokens", _BUILT_IN, {**_NUMBER, "help": "tokens of the prompt of a prefill (default 512)"}),
        OptionRow("--requests", _BUILT_IN, {**_NUMBER, "help": "conversations that are served together (default 1)"}),
        OptionRow("--layers", _BUILT_IN, {**_NUMBER, "help": "first N layers only"}),
        OptionRow("--qbits-weight", _BUILT_IN, {"metavar": "N",
            "help": "bits of a weight: 2, 4, 8 or 16 (default), or vq: vector quantization"}),
    ),
    "ONNX decoders with a key/value cache (pyv-npu docs llm)": (
        OptionRow("--generate", _DECODER, {**_NUMBER, "help": "make N tokens after the prompt"}),
        OptionRow("--prompt", _DECODER, {"metavar": "N,N",
            "help": "tokens that are there, taken at once; default: 4, drawn with run.seed"}),
        OptionRow("--given", _DECODER, {"metavar": "N,N",
            "help": "the first of the new tokens; the others are chosen: the largest logit"}),
        OptionRow("--t-max", _CACHED, {**_NUMBER, "help": "tokens that the caches hold; default: what is needed"}),
        OptionRow("--qbits-kv", _CACHED, {**_NUMBER,
            "help": "bits of keys and values: 2, 4, 8, 16; built-in models: 4; several: `sweep` with qbits-kv=2,4"}),
        OptionRow("--kv", _CACHED, {"choices": KV_METHODS, "metavar": "METHOD",
            "help": f"how keys and values are stored: {', '.join(KV_METHODS)} (pyv-npu docs kv-cache)"}),
        OptionRow("--thresholds", _DECODER, {"type": output.path, "metavar": "FILE.json",
            "help": "thresholds of --kv oaken, made by `pyv-npu profile-kv`; default: profiled on --calibration, or on "
            "random prompts"}),
    ),
}  # fmt: skip


def arguments(parser: argparse.ArgumentParser, kinds: Collection[WorkloadType]) -> None:
    """Add the options of the workload types that a command supports."""
    parser.set_defaults(**{row.name: None for rows in _TABLE.values() for row in rows})
    for title, rows in _TABLE.items():
        selection = [row for row in rows if set(row.kinds) & set(kinds)]
        group = parser.add_argument_group(title) if selection else None
        for row in selection:
            assert group is not None
            group.add_argument(row.option, **row.settings)


def workload_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the workload options that a command line sets, by name."""
    rows = (row for group in _TABLE.values() for row in group)
    return {row.option: getattr(args, row.name) for row in rows if getattr(args, row.name) is not None}


def workload(args: argparse.Namespace, config: "Config", kinds: Collection[WorkloadType], verb: str) -> "Workload[Any]":
    """Return the workload of a command line; raise UsageError for an option that it does not support."""
    program = config.run.program
    kind = _kind(args, program)
    if kind not in kinds:
        if kind is WorkloadType.BUILT_IN:
            raise UsageError(f"{program}: {verb} takes no built-in model; `pyv-npu run` and `compare` do")
        kind = WorkloadType.FIRMWARE if WorkloadType.FIRMWARE in kinds else WorkloadType.MODEL
    for rows in _TABLE.values():
        for row in rows:
            if kind not in row.kinds and getattr(args, row.name) is not None:
                check_program(program)
                raise UsageError(f"{row.option}: {_reason(row, kind, kinds)}; drop it")
    return _workload_of(args, program, kind, on_core=kinds is ON_CORE)


def check_program(program: str) -> None:
    """Raise BadInputError if a program is neither a file nor shipped firmware nor a known model."""
    from pyv_npu.config.shape_file import is_shape

    if not is_shape(program):
        find_program(program)


def _kind(args: argparse.Namespace, program: str) -> WorkloadType:
    if program.endswith(MODEL_SUFFIXES) or is_example(program):
        if args.generate is not None:
            return WorkloadType.DECODER
        return WorkloadType.TIMED if args.timing_only else WorkloadType.MODEL
    if not program.endswith(".elf") and program not in shipped_programs():  # skip the import for common programs
        from pyv_npu.config.shape_file import is_shape

        if is_shape(program):
            return WorkloadType.BUILT_IN
    if program.endswith(".json"):
        return WorkloadType.COMMAND_LIST
    return WorkloadType.FIRMWARE


def _reason(row: OptionRow, kind: WorkloadType, kinds: Collection[WorkloadType]) -> str:
    if row.reason and kind is not WorkloadType.FIRMWARE:
        return row.reason
    if row in _TABLE["models"]:
        return _GENERATING if kind is WorkloadType.DECODER else _COMPILING
    parts = []
    if WorkloadType.BUILT_IN in row.kinds and WorkloadType.BUILT_IN in kinds:
        parts.append("for built-in models (llama2-7b, ...)")
    if WorkloadType.DECODER in row.kinds:
        parts.append("for ONNX decoders that run with --generate N and --prompt")
    return f"is {' and '.join(parts)}"


# -- from options to workloads -----------------------------------------------------------------------------------------


def _workload_of(args: argparse.Namespace, program: str, kind: WorkloadType, on_core: bool) -> "Workload[Any]":
    if kind is WorkloadType.FIRMWARE:
        return Firmware(program, values=not args.timing_only)
    if kind is WorkloadType.COMMAND_LIST:
        from pyv_npu.workloads.command_list import CommandList

        return CommandList(program)
    if kind in (WorkloadType.MODEL, WorkloadType.TIMED):
        from pyv_npu.workloads.model import Model

        if kind is WorkloadType.TIMED:
            return Model(model_file(program), choices(args), values=False)
        return Model(model_file(program), choices(args), args.inputs, _inputs(args.input or ()))
    return _generation(args, program) if kind is WorkloadType.DECODER else _built_in(args, program, on_core)


def choices(args: argparse.Namespace) -> "Choices":
    """Return the compiler options of the command line; raise UsageError for a malformed shape or constant."""
    from pyv_npu.workloads.model_file import Choices

    shapes: dict[str, tuple[int, ...]] = {}
    for text in args.shape or ():
        shapes |= _shapes(text)
    constants = {}
    for text in args.constant or ():
        name, equals, number = text.rpartition("=")
        try:
            constants[name] = float(number) if equals and name else _NO_NUMBER
        except ValueError:
            constants[name] = _NO_NUMBER
        if constants[name] - constants[name] != 0:  # infinite or NaN
            raise UsageError(f"--constant {text}: must have the form NAME=NUMBER")
    return Choices(
        shapes, args.passes or "all", args.granularity or "macro", args.precision or "", *_calibration_options(args),
        args.qconfig, constants, args.submit or "firmware",
    )  # fmt: skip


def _calibration_options(args: argparse.Namespace) -> "tuple[tuple[Path, ...], int, str]":
    """Return files, number of random inputs, and method of the calibration."""
    from pyv_npu.workloads.data import calibration_of
    from toolchain.quantize.ranges import parse_method

    if args.calibration_method is not None and not (args.precision or "").startswith(("int8", "fp8")):
        raise UsageError("--calibration-method: is for --precision int8 and fp8; give one of them too, or drop it")
    method = args.calibration_method or "minmax"
    try:
        parse_method(method)
    except ModelError as error:
        raise UsageError(str(error)) from None
    return *calibration_of(args.calibration or ()), method


def _inputs(texts: Sequence[str]) -> "dict[str, Path | float]":
    """Parse the values of --input: input name -> file or number."""
    inputs: dict[str, Path | float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise UsageError(f"--input {text}: must have the form NAME=FILE or NAME=NUMBER")
        if name in inputs:
            raise UsageError(f"--input {text}: {name} is given twice; keep one")
        try:
            inputs[name] = float(value)
        except ValueError:
            inputs[name] = output.path(value)
    return inputs


def _shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Parse a value of --shape, such as NAME=1,128 or NAME=1,OTHER=128."""
    shapes: dict[str, tuple[int, ...]] = {}
    name = ""
    for part in text.split(","):
        head, equals, size = part.rpartition("=")
        name = head if equals else name
        if not (name and size.isdecimal() and 0 < int(size) < 1 << 31 and (not equals or name not in shapes)):
            raise UsageError(f"--shape {text}: must have the form NAME=1,128, every dimension 1..{(1 << 31) - 1}")
        shapes[name] = (*shapes.get(name, ()), int(size))
    return shapes


def _generation(args: argparse.Namespace, program: str) -> "Generation":
    """Return the generation workload of an ONNX decoder."""
    from pyv_npu.workloads.decoder import Generation
    from pyv_npu.workloads.generation import GenerationRequest

    if args.precision not in (None, "int8"):
        raise UsageError(f"--precision: {_GENERATING}; drop it")
    if args.calibration and args.precision is None and (args.kv is None or args.thresholds is not None):
        raise UsageError(f"--calibration: {_GENERATING}; drop it")
    kv = _storage(args)
    request = GenerationRequest(
        _tokens(args, "prompt"), args.generate, _tokens(args, "given"), args.t_max, args.qbits_kv, args.passes or "all",
        args.qconfig, args.precision or "", *_calibration_options(args), args.granularity or "macro",
        args.submit or "firmware", kv, args.thresholds,
    )  # fmt: skip
    return Generation(model_file(program), request)


def _tokens(args: argparse.Namespace, name: str) -> tuple[int, ...]:
    text = getattr(args, name)
    if text is None:
        return ()
    if not all(token.isdecimal() for token in text.split(",")):
        raise UsageError(f"--{name} {text}: must be a list of tokens such as 3,1,4")
    return tuple(map(int, text.split(",")))


def _weight_bits(text: str) -> int:
    from toolchain.quantize.codebook import VQ_BITS
    from toolchain.quantize.qconfig import VQ

    if text == VQ:
        return VQ_BITS
    if not text.isdecimal() or int(text) == VQ_BITS:
        raise UsageError(f"--qbits-weight {text}: must be 2, 4, 8 or 16, or {VQ}")
    return int(text)


def _built_in(args: argparse.Namespace, program: str, on_core: bool) -> "BuiltIn":
    """Return the workload of a built-in model; it runs on the core if `on_core` is set or a mode is selected."""
    from pyv_npu.workloads.built_in import BuiltIn, Phase, PhaseRequest

    phase = Phase(args.phase or "decode")
    for name, other in (("context", Phase.PREFILL), ("tokens", Phase.DECODE)):
        if phase is other and getattr(args, name) is not None:
            raise UsageError(f"--{name}: says nothing about phase {phase.value}; drop it or choose the other phase")
    if args.qbits_weight is not None:
        args.qbits_weight = _weight_bits(args.qbits_weight)
    fields = {"context": "context", "tokens": "tokens", "requests": "requests", "layers": "layers", "t_max": "t_max",
              "qbits_weight": "weight_bits", "qbits_kv": "kv_bits", "passes": "passes",
              "granularity": "granularity"}  # fmt: skip
    values = {field: getattr(args, name) for name, field in fields.items() if getattr(args, name) is not None}
    request = PhaseRequest(program, phase, **values)
    if args.kv is not None and args.qconfig is not None:
        raise UsageError(f"--qconfig: --kv {args.kv} says how keys and values are stored; drop one of them")
    request = request._replace(kv=_storage(args))
    on_core = on_core or MODE in dict(args.settings)
    if args.qconfig is not None:
        for option, value in (("--qbits-kv", args.qbits_kv), ("--qbits-weight", args.qbits_weight)):
            if value is not None:
                raise UsageError(f"{option}: --qconfig says it already; give one of them")
        return BuiltIn(request, on_core, args.qconfig)
    return BuiltIn(request, on_core)


def _storage(args: argparse.Namespace) -> str:
    """Return the storage method of keys and values, empty for integers of --qbits-kv bits; UsageError if both are
    set."""
    if args.kv is not None and args.qbits_kv is not None:
        raise UsageError(f"--qbits-kv: --kv {args.kv} says how keys and values are stored; drop one of them")
    return args.kv or ""
