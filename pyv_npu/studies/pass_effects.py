"""What each pass is worth: the cycles of a model at CA_HYBRID with all chosen passes, and without one at a time.

No core and no numbers: what the passes change is on the NPU.
"""

from typing import NamedTuple

from pyv_npu.config import Config
from pyv_npu.text import MISSING, columns, lines_of
from pyv_npu.workloads.model_file import Choices, compile_loaded
from pyv_npu.workloads.timing import run_commands
from toolchain.errors import ModelError
from toolchain.onnx_frontend import OnnxModel
from toolchain.passes import PASSES, selected


class WriteSet(NamedTuple):
    """A pass, and the model without it."""

    name: str
    commands: int
    cycles: int
    """0: the model cannot be compiled without it."""


def effects(config: Config, model: OnnxModel, choices: Choices) -> list[WriteSet]:
    """The model with the chosen passes (without a name), then without each of them."""
    names = selected(choices.passes)
    made = []
    for left_out in ("", *names):
        chosen = ",".join(name for name in names if name != left_out) or "none"
        try:
            compiled = compile_loaded(config, model, choices._replace(passes=chosen))
            made.append(WriteSet(left_out, len(compiled.commands), run_commands(compiled.commands, config.npu).cycles))
        except ModelError:
            if not left_out:
                raise
            made.append(WriteSet(left_out, 0, 0))
    return made


def render_effects(found: list[WriteSet]) -> str:
    """The table, and what each pass does."""
    base = found[0]
    rows = [["all chosen passes", str(base.commands), f"{base.cycles:,}", ""]]
    for one in found[1:]:
        name = f"without {one.name}"
        if one.cycles:
            change = f"{(one.cycles - base.cycles) / base.cycles:+.1%}"
            rows.append([name, str(one.commands), f"{one.cycles:,}", change])
        else:
            rows.append([name, MISSING, MISSING, "cannot be compiled"])
    table = columns(["CA_HYBRID, timing only", "commands", "cycles", "change"], rows)
    meaning = lines_of("", [(one.name, PASSES[one.name].text) for one in found[1:]]) if found[1:] else ""
    return f"{table}\n\n{meaning}\n"
