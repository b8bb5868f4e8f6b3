"""Mutated inputs for what users open, and what must come of them: an answer or one clear line, within bounds.

`scripts/fuzz TARGET --count N --seed S` runs a target for as long as you like; docs/reliability.md has the figures. The
modules of MLIR are mutated by tests/toolchain/mlir/test_bad_modules.py.
"""

import json
import random
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fuzz_descriptors import descriptors
from fuzz_devices import devices
from fuzz_files import input_files, records, traces
from fuzz_inputs import INTERESTING, FoundError, change, compiled, flipped, refused
from fuzz_models import onnx_models
from fuzz_snapshots import snapshots
from fuzz_texts import assembly, gdb_packets, json_files, results, yaml_files

from npu_device.config import NpuConfig
from npu_device.levels.command_list import load as load_list
from npu_device.levels.command_list import run as run_list
from pyv_ext.elf import parse_elf
from pyv_ext.engines.core import StopReason
from pyv_native.elf_tables import SYMBOL_TABLE, Tables
from pyv_npu import boot
from pyv_npu.config import Config
from pyv_npu.config import load as load_config
from pyv_npu.config.schema import keys_of
from pyv_npu.faults.plan import ACTIONS, TRIGGERS, read_plan
from pyv_npu.platform import Platform
from pyv_npu.workloads.compiled import target_of
from toolchain.codegen.cmdq import document

CPU_SECONDS = 20
"""Of one input."""
MOST_MEMORY = 1 << 30
"""Of the process, in use. Simulated DRAM takes address space, and memory as it is written."""
LOOK = 50
"""Inputs between two looks at the memory: one takes longer than some inputs."""


def resident() -> int:
    """Bytes of memory that this process has used at most, at one time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


class TooSlow(BaseException):
    """An input took longer than it may."""


class Tally(NamedTuple):
    """What came of the inputs of a target."""

    inputs: int
    accepted: int
    refused: int


@contextmanager
def limited(seconds: int = CPU_SECONDS) -> Iterator[None]:
    """TooSlow where the block takes more CPU time."""

    def late(*_: object) -> None:
        raise TooSlow(f"more than {seconds} CPU seconds")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


LONG = 100
"""Reading the lines of an ELF file, and running it, take twenty times as long as reading it: one of so many does."""


FEW_SYMBOLS = 24
"""The C library has hundreds in every program; reading them is most of the time."""


@cache
def programs() -> tuple[bytes, ...]:
    """Those that ship, each as it is and with few symbols four times."""
    whole = [boot.program_data(name) for name in boot.shipped_programs()]
    return (*whole, *(_with_few_symbols(data) for data in whole for _ in range(4)))


def _with_few_symbols(data: bytes) -> bytes:
    """A program whose table of symbols ends early."""
    tables = Tables(data)
    index = next(index for index, one in enumerate(tables.sections) if one.sh_type == SYMBOL_TABLE)
    size = tables.header.e_shoff + 40 * index + 20
    return data[:size] + (16 * FEW_SYMBOLS).to_bytes(4, "little") + data[size + 4 :]


def elfs(chance: random.Random, folder: Path) -> bool:
    """Read. The lines of one of LONG are read, and one of LONG is loaded and runs for some thousand cycles."""
    data = chance.choice(programs())
    if chance.random() < 0.5:  # headers, where a flip means most
        head = chance.choice((52, 52 + 32 * 6, 4096))
        data = flipped(data[:head], chance) + data[head:]
    else:
        data = flipped(data, chance, 8)
    if chance.random() < 0.1:
        data = data[: chance.randrange(len(data))]
    try:
        program = parse_elf(data, "fuzzed.elf")
        boot.requirements(program)
        if not chance.randrange(LONG):
            program.place(program.entry)
        if chance.randrange(LONG):
            return True
        platform = Platform(load_config([], None, {"core.engine": "reference"}).config)
        platform.load(program)
        stop = platform.run(until=5000)
        platform.deliver()
        if stop.reason not in list(StopReason):
            raise FoundError(f"stopped with {stop}")
    except Exception as error:
        return not refused(error)
    return True


@cache
def lists() -> tuple[str, ...]:
    return tuple(
        json.dumps(document(compiled(name).commands, target_of(NpuConfig()))) for name in ("cnn", "mlp_int8", "decoder")
    )


def command_lists(chance: random.Random, folder: Path) -> bool:
    """A few commands of a list, with some of their values changed; those that are taken run at one level."""
    whole = json.loads(chance.choice(lists()))
    first = chance.randrange(len(whole["commands"]))
    whole["commands"] = whole["commands"][first : first + chance.randint(1, 4)]
    for _ in range(chance.randint(1, 3)):
        change(whole["commands"], chance)
    if chance.random() < 0.05:
        change(whole, chance)
    try:
        listed = load_list(whole, NpuConfig())
        run_list(listed, NpuConfig(), chance.choice(("IA_TIMING", "CA_HYBRID")), values=chance.random() < 0.5)
    except Exception as error:
        return not refused(error)
    return True


@cache
def keys() -> tuple[Any, ...]:
    return tuple(key for path, key in keys_of(Config).items() if not path.startswith("run.p"))


def configurations(chance: random.Random, folder: Path) -> bool:
    """A file with some keys, most with values of their type; one of four that are taken makes a platform."""
    lines = []
    for key in chance.sample(keys(), chance.randint(1, 5)):
        choices = key.rule.get("choices") or ()
        values: list[Any] = [*choices, True, False, *INTERESTING, key.default, key.rule.get("min"), key.rule.get("max")]
        if chance.random() < 0.15:
            values = ["none", "[]", "{a: 1}", "-5", "1e9", "64KiB", "12.8 GB/s", "1e99MiB", "0x", '"', "2024-99-99",
                      "[1, 2", "&a *a", 1 << 80]  # fmt: skip
        value = chance.choice([value for value in values if value is not None] or [0])
        lines.append(f"{key.path}: {str(value).lower() if isinstance(value, bool) else value}")
    text = "\n".join(lines)
    if chance.random() < 0.2:
        text = flipped(text.encode(), chance).decode("latin-1")
    path = folder / "fuzzed.yaml"
    path.write_text(text, encoding="utf-8")
    try:
        config = load_config([path], None, {}).config
        if config.npu.dram.size <= 256 << 20 and config.npu.spm.size <= 16 << 20 and not chance.randrange(4):
            Platform(replace(config, core=replace(config.core, engine="reference")))
    except Exception as error:
        return not refused(error)
    return True


def fault_files(chance: random.Random, folder: Path) -> bool:
    """A file with a few faults, some of whose keys and values are wrong."""
    plan = []
    for _ in range(chance.randint(1, 3)):
        do = chance.choice(list(ACTIONS))
        fault: dict[str, Any] = {"do": do, "at": {chance.choice(list(TRIGGERS)): chance.choice((1, "main", [0, 9]))}}
        for name, rule in ACTIONS[do].parameters.items():
            fault[name] = chance.choice((rule.low, rule.default, *rule.names, *INTERESTING))
        plan.append(fault)
    whole = {"faults": plan}
    for _ in range(chance.randrange(3)):
        change(whole, chance)
    path = folder / "fuzzed.yaml"
    path.write_text(json.dumps(whole), encoding="utf-8")
    try:
        read_plan(path, drawn=chance.random() < 0.5)
    except Exception as error:
        return not refused(error)
    return True


def mlir_modules(chance: random.Random, folder: Path) -> bool:
    """One module, mutated as the tests of the MLIR front end do it."""
    from test_bad_modules import fuzz

    return not fuzz(1, chance.getrandbits(32))


Target = Callable[[random.Random, Path], bool]
TARGETS: dict[str, Target] = {
    "descriptors": descriptors,
    "elf": elfs,
    "command_lists": command_lists,
    "configurations": configurations,
    "devices": devices,
    "faults": fault_files,
    "onnx": onnx_models,
    "mlir": mlir_modules,
    "snapshots": snapshots,
    "inputs": input_files,
    "traces": traces,
    "records": records,
    "yaml": yaml_files,
    "json": json_files,
    "results": results,
    "gdb": gdb_packets,
    "assembler": assembly,
}
"""Name -> a function that makes one input, has it taken, and says whether it was accepted."""


def run(name: str, count: int, seed: int, folder: Path, say: Callable[[int], None] = lambda number: None) -> Tally:
    """`count` inputs of a target. FoundError, with the seed that makes the input again, for one that fails."""
    target, accepted, looked = TARGETS[name], 0, seed
    most = max(resident(), MOST_MEMORY)
    warnings.simplefilter("ignore", RuntimeWarning)  # as the command line does: infinities are values like others
    for number in range(seed, seed + count):
        try:
            with limited():
                accepted += target(random.Random(f"{name} {number}"), folder)
            if (number - seed) % LOOK == LOOK - 1 or number == seed + count - 1:
                if resident() > most:
                    raise FoundError(f"{resident():,} bytes of memory, of one of the inputs from seed {looked} on")
                looked = number + 1
        except (Exception, TooSlow) as error:
            raise FoundError(f"{name}, seed {number}: {type(error).__name__}: {error}") from error
        say(number - seed + 1)
    return Tally(count, accepted, count - accepted)
