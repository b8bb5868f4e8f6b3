"""`pyv-npu info`: what ships with the package."""

import argparse
from pathlib import Path

from pyv_npu.cli.output import OK, Call, show


def arguments(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def execute(args: argparse.Namespace, call: Call) -> int:
    from pyv_jit import aot
    from pyv_npu.config import presets
    from pyv_npu.config.presets import CONFIGS
    from pyv_npu.text import lines_of
    from pyv_npu.versions import versions

    timing = [(name, presets.load(name, Path()).basis) for name in presets.NAMES]
    timing = [(name, f"{text} (default)" if name == presets.DEFAULT else text) for name, text in timing]
    blocks = (
        lines_of("firmware (pyv-npu run NAME)", _firmware()),
        lines_of("built-in decoder models (pyv-npu run NAME --phase decode)", _models()),
        lines_of("timing presets (--preset NAME)", timing),
        lines_of("configurations (--config NAME)", list(CONFIGS.items())),
        lines_of("versions", [*versions().items(), ("compiled", aot.form().text)]),
    )
    show("\n\n".join(blocks))
    return OK


def _models() -> list[tuple[str, str]]:
    from toolchain.decoders.shapes import MODELS

    return [
        (shape.name, f"{shape.parameters / 1e9:.2f} x 10^9 parameters, {shape.layers} layers, width {shape.width}")
        for shape in MODELS.values()
    ]


def _firmware() -> list[tuple[str, str]]:
    from pyv_npu.boot import shipped_programs
    from toolchain.gnu import APPLICATIONS, BOTH

    shipped = shipped_programs()
    rows = []
    for row in APPLICATIONS:
        modes = "" if row.modes == BOTH else f" ({', '.join(row.modes)} mode only)"
        built = "" if row.name in shipped else "; not built here: pyv-npu build-firmware DIR"
        rows.append((row.name, f"{row.text}{modes}{built}"))
    return rows
