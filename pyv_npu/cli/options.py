"""Options of `run` and `compare` that lead to a configuration: each is another name for a key."""

import argparse
from functools import partial
from typing import TYPE_CHECKING

from pyv_npu.errors import BadInputError, UsageError

if TYPE_CHECKING:
    from pyv_npu.config import Config, Effective

PROGRAMS = "an ELF, a name that `pyv-npu info` lists, or an ONNX model"
FIRMWARE_LEVEL = "CA_HYBRID"
_NO_CORE = {"IA": "computes a model without a core", "IA_TIMING": "is an analytic model without a core"}
"""Why levels that run models cannot run firmware."""

_KEYS: tuple[tuple[tuple[str, ...], str, str, str], ...] = (
    (("--sim-level", "--sim_level"), "run.sim_level", "LEVEL", "IA, IA_TIMING, CA_HYBRID, CA_FULL or L0..L3"),
    (("--mmio-base",), "platform.mmio_base", "ADDRESS", "where the NPU's registers are"),
    (("--queue-size",), "npu.queue.size", "N", "entries of the submission queue, a power of two"),
    (("--isa",), "core.custom", "LIST", "custom instructions present in tight mode: enqcmd,twait,tbar,tstat"),
    (("--core",), "core.engine", "ENGINE", "fast, python, reference or pyv"),
    (("--max-cycles",), "run.max_cycles", "N", "stop after N core cycles"),
    (("--timeout",), "run.timeout", "SECONDS", "stop after so much time of the host"),
    (("--seed",), "run.seed", "N", "of every random table"),
)
_MODE = (("--mode", "--te-mode", "--te_mode"), "npu.mode", "MODE", "how firmware submits: loose or tight")
_PAIRS = (
    ("--arg", "run.args.", "NAME=N", "a value that the firmware finds in npu_bootinfo; repeatable"),
    ("--set", "", "KEY=VALUE", "any key of the configuration; repeatable"),
)


def arguments(parser: argparse.ArgumentParser, with_mode: bool) -> None:
    """Add every option that `effective` reads; all that set a key append to `settings` in the order given."""
    parser.set_defaults(settings=[])
    for names, key, metavar, text in (_MODE, *_KEYS) if with_mode else _KEYS:
        help_text = f"{text} ({key})"
        parser.add_argument(
            *names, dest="settings", action="append", type=partial(_setting, key), metavar=metavar, help=help_text
        )
    for name, prefix, metavar, text in _PAIRS:
        kind = partial(_pair, name, prefix, metavar)
        parser.add_argument(name, dest="settings", action="append", type=kind, metavar=metavar, help=text)
    parser.add_argument("--preset", help="timing preset: a name that `pyv-npu info` lists, or a YAML file")
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="YAML, or a name that `pyv-npu info` lists; later ones win",
    )
    parser.add_argument("--print-config", action="store_true", help="print the effective configuration and stop")


def _setting(key: str, value: str) -> tuple[str, str]:
    return key, value


def _pair(option: str, prefix: str, form: str, value: str) -> tuple[str, str]:
    name, equals, text = value.partition("=")
    if not (name and equals):
        raise UsageError(f"{option} {value}: must have the form {form}")
    return prefix + name, text


def effective(args: argparse.Namespace) -> "Effective":
    """The effective configuration of a command line."""
    from pyv_npu.config import load
    from pyv_npu.config.effective import check_isa

    settings = list(args.settings)
    if args.program is not None:
        settings.append(("run.program", args.program))
    result = load(args.config, args.preset, dict(settings))
    check_isa(result, "--isa")
    return result


def firmware_of(config: "Config") -> str:
    """The firmware that a configuration names; UsageError or BadInputError where nothing can run it."""
    program = config.run.program
    if not program:
        raise UsageError("no firmware is named; give the path of an ELF or a name that `pyv-npu info` lists")
    if program.endswith((".onnx", ".mlir")):
        raise BadInputError(
            f"{program}: this version runs RISC-V ELF files; give one or a name that `pyv-npu info` lists"
        )
    check_level(config)
    return program


def check_level(config: "Config") -> None:
    """UsageError where a level has no core to run firmware on."""
    from pyv_npu.config.tree import NOT_CONNECTED

    level = config.run.sim_level
    if level != FIRMWARE_LEVEL:
        reason = _NO_CORE.get(level, NOT_CONNECTED)
        raise UsageError(f"--sim-level {level}: {reason}; firmware runs at {FIRMWARE_LEVEL}")
