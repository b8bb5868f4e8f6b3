"""`pyv-npu run CMDQ.json`: a command list on the NPU model without a core."""

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyv_npu.cli import exit_codes, output
from pyv_npu.errors import BadInputError, UsageError

if TYPE_CHECKING:
    from npu_device.levels.command_list import ListRun
    from pyv_npu.config import Effective

SUFFIX = ".json"


def run(args: argparse.Namespace, effective: "Effective") -> int:
    """Load, check as a whole, run at IA_TIMING or CA_HYBRID, explain."""
    from npu_device.abi.errors import NpuDeviceError
    from npu_device.levels.command_list import LEVELS, load
    from npu_device.levels.command_list import run as run_list

    config = effective.config
    level = config.run.sim_level
    if level not in LEVELS:
        raise UsageError(f"--sim-level {level}: a command list runs at {' or '.join(LEVELS)}; choose one")
    document = _read(config.run.program)
    report = output.open_report(args, effective, "run")
    began_wall, began_cpu = time.perf_counter(), time.process_time()
    try:
        listed = load(document, config.npu)
        made = run_list(listed, config.npu, level)
    except NpuDeviceError as error:
        raise BadInputError(f"{config.run.program}: {error}") from None
    host = {"wall_s": time.perf_counter() - began_wall, "cpu_s": time.process_time() - began_cpu, "mips": None}
    result = _result(made, effective, host)
    text = f"{config.run.program} at {level}: {made.cycles:,} cycles\n\n{made.explanation.text()}"
    if report is not None:
        from pyv_npu.report.report import Shown
        from pyv_npu.workloads.report import write_list_report
        from toolchain.codegen import Command

        names = [str(command.get("layer", command["opcode"])) for command in document["commands"]]
        commands = [Command(name, one.descriptor, one.block) for name, one in zip(names, listed, strict=True)]
        write_list_report(report, Shown.of(result, config, [made.records], commands), text)
    output.show(args, result, text, report)
    return exit_codes.OK


def _read(name: str) -> Any:
    try:
        return json.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(f"{name}: {error.strerror}; give the name of a command list") from None
    except UnicodeDecodeError:
        raise BadInputError(f"{name}: not UTF-8 text; give a command list") from None
    except ValueError as error:
        raise BadInputError(f"{name}: not JSON: {error}; correct it") from None


def _result(made: "ListRun", effective: "Effective", host: dict[str, Any]) -> dict[str, Any]:
    config = effective.config
    return {
        "schema": 1,
        "program": config.run.program,
        "core": None,
        "mode": None,
        "sim_level": config.run.sim_level,
        "preset": config.preset,
        "exit_code": 0,
        "stop_reason": "exit",
        "cycles": made.cycles,
        "instret": None,
        "uart": None,
        "latency": None,
        "npu": made.counters,
        "explanation": made.explanation.to_json(),
        "events_sha256": made.events.hexdigest(),
        "host": host,
    }
