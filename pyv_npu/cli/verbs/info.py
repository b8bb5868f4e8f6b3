"""`pyv-npu info`: list the contents of the package, and print flags and files for build systems and editors."""

import argparse
import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyv_npu.boot import shipped_programs
from pyv_npu.cli.shared.output import OK, Call, show
from pyv_npu.config import presets
from pyv_npu.config.energy_table import read_shipped_table
from pyv_npu.config.package_data import data_files, descriptions
from pyv_npu.errors import UsageError
from pyv_npu.text import as_json, lines_of
from toolchain import gnu
from toolchain.gnu import APPLICATIONS, BOTH_MODES

_BUILD: dict[str, tuple[str, Callable[[str, int], Sequence[str]]]] = {
    "cflags": ("flags that compile firmware for this package", gnu.compile_flags),
    "ldflags": ("flags that link it", lambda march, slot: gnu.link_flags(march)),
    "link-script": ("the linker script", lambda march, slot: [str(gnu.link_script())]),
    "include": ("the folder of headers", lambda march, slot: [str(gnu.firmware_folder() / gnu.HEADERS)]),
    "runtime": ("sources of start-up code and driver, which every program is linked with",
                lambda march, slot: [str(path) for path in gnu.runtime_sources()]),
}  # fmt: skip
"""Flag -> help text, and function of instruction set and slot that returns words for a build system."""


def arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    for name, (text, _) in _BUILD.items():
        group.add_argument(f"--{name}", dest="what", action="store_const", const=name, help=text)
    group.add_argument(
        "--schema", dest="what", action="store_const", const="schema",
        help="JSON schema of the configuration, by which editors complete and check YAML",
    )  # fmt: skip
    group.add_argument("--json", dest="what", action="store_const", const="json", help="what ships, as one JSON object")
    parser.add_argument("program", nargs="?", metavar="config.json", help="a configuration of a decoder, or a built-in "
                        "one: what is derived from it")  # fmt: skip
    parser.add_argument("--march", metavar="ISA", help="with --cflags and --ldflags: as of `pyv-npu build`")
    parser.add_argument("--slot", type=int, choices=range(4), help="with --cflags: as of `pyv-npu build`")


def execute(args: argparse.Namespace, call: Call) -> int:
    for name, allowed in (("march", ("cflags", "ldflags")), ("slot", ("cflags",))):
        if getattr(args, name) is not None and args.what not in allowed:
            raise UsageError(f"--{name}: goes with {' and '.join(f'--{flag}' for flag in allowed)}; drop it")
    if args.program is not None:
        if args.what not in (None, "json"):
            raise UsageError(f"--{args.what}: is about this package, not about {args.program}; drop one of them")
        from pyv_npu.config.shape_file import shape_of  # here and below: build systems ask for flags at each start
        from toolchain.decoders.config_facts import derive_figures

        values = derive_figures(shape_of(args.program))
        rows = [(name, f"{value:,}" if type(value) is int else str(value)) for name, value in values.items()]
        show(as_json({"schema": 1, **values}) if args.what == "json" else lines_of(args.program, rows))
    elif args.what == "schema":
        from pyv_npu.config.json_schema import schema

        show(as_json(schema()))
    elif args.what == "json":
        show(as_json({"schema": 1, **{block.key: dict(block.rows) for block in _blocks()}}))
    elif args.what is not None:
        show(shlex.join(_BUILD[args.what][1](args.march or gnu.MARCH, args.slot or 0)))
    else:
        show("\n\n".join(lines_of(block.heading, block.rows) for block in _blocks()))
    return OK


class _Block(NamedTuple):
    """Group of shipped items of one kind."""

    key: str
    """Key of the JSON object."""
    heading: str
    rows: Sequence[tuple[str, str]]
    """Name and description."""


def _blocks() -> list[_Block]:
    from pyv_npu.versions import versions

    timing = [(name, presets.load(name, "").basis) for name in presets.NAMES]
    timing = [(name, f"{text} (default)" if name == presets.DEFAULT else text) for name, text in timing]
    examples = "example models, made on demand (pyv-npu run NAME; decoders with --generate N --prompt)"
    tables = [(name, read_shipped_table(name).technology) for name in data_files("energy_tables")]
    plans = "plans of faults (--faults NAME, pyv-npu campaign NAME)"
    return [
        _Block("firmware", "firmware (pyv-npu run NAME)", _firmware()),
        _Block("built_in_models", "built-in decoder models (pyv-npu run NAME --phase decode)", _models()),
        _Block("examples", examples, _examples()),
        _Block("presets", "timing presets (--preset NAME)", timing),
        _Block("configurations", "configurations (--config NAME)", list(descriptions("configs").items())),
        _Block("qconfigs", "QConfigs (--qconfig NAME)", list(descriptions("qconfigs").items())),
        _Block("energy_tables", "tables of energy and area (--set energy.table=NAME)", tables),
        _Block("fault_plans", plans, list(data_files("examples").items())),
        _Block("sources", "example sources (pyv-npu build NAME)", list(data_files("examples", ".c").items())),
        _Block("versions", "versions", list(versions().items())),
    ]


def _models() -> list[tuple[str, str]]:
    from toolchain.decoders.shapes import MODELS

    return [
        (shape.name, f"{shape.parameters / 1e9:.2f} x 10^9 parameters, {shape.layers} layers, width {shape.width}")
        for shape in MODELS.values()
    ]


def _examples() -> list[tuple[str, str]]:
    from toolchain.examples import DECODERS, EXAMPLES

    models = [name for name in EXAMPLES if name not in shipped_programs()]
    return [("models", ", ".join(models)), ("decoders", ", ".join(DECODERS))]


def _firmware() -> list[tuple[str, str]]:
    shipped = shipped_programs()
    rows = []
    for row in APPLICATIONS:
        modes = "" if row.modes == BOTH_MODES else f" ({', '.join(row.modes)} mode only)"
        built = "" if row.name in shipped else "; not built here: pyv-npu build-firmware DIR"
        rows.append((row.name, f"{row.text}{modes}{built}"))
    return rows
