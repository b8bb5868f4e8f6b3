"""Effect of each pass: cycles of a model at CA_HYBRID with all chosen passes, and without one at a time.

Core and values are not simulated: passes change only the NPU's commands.
"""

from typing import NamedTuple

from pyv_npu.config import Config
from pyv_npu.sections import Cell, Facts, Section, Table, Value, as_text
from pyv_npu.workloads.model_file import Choices, compile_loaded
from pyv_npu.workloads.timing import run_commands
from toolchain.errors import ModelError
from toolchain.onnx_frontend import OnnxModel
from toolchain.passes import PASSES, select_passes


class PassEffect(NamedTuple):
    """Model without a pass."""

    name: str
    commands: int
    cycles: int
    """Cycles of the model; 0: it cannot be compiled without the pass."""


def effects(config: Config, model: OnnxModel, choices: Choices) -> list[PassEffect]:
    """Return the effect of all chosen passes (with an empty name), then without each of them."""
    names = select_passes(choices.passes)
    rows = []
    for left_out in ("", *names):
        selection = ",".join(name for name in names if name != left_out) or "none"
        try:
            compiled = compile_loaded(config, model, choices._replace(passes=selection))
            rows.append(
                PassEffect(left_out, len(compiled.commands), run_commands(compiled.commands, config.npu).cycles)
            )
        except ModelError:
            if not left_out:
                raise
            rows.append(PassEffect(left_out, 0, 0))
    return rows


def render_effects(effects_of_passes: list[PassEffect]) -> str:
    """Format the table and the description of each pass for a terminal."""
    base, *ablations = effects_of_passes
    rows: list[list[Value]] = [["all chosen passes", base.commands, base.cycles, Cell("")]]
    for effect in ablations:
        figures: list[Value] = [None, None, Cell("cannot be compiled")]
        if effect.cycles:
            figures = [effect.commands, effect.cycles, Cell(f"{(effect.cycles - base.cycles) / base.cycles:+.1%}")]
        rows.append([f"without {effect.name}", *figures])
    table = Table(("CA_HYBRID, timing only", "commands", "cycles", "change"), rows)
    meaning = Facts([(effect.name, PASSES[effect.name].text) for effect in ablations])
    return as_text([Section("effects", "", [table, meaning])])
