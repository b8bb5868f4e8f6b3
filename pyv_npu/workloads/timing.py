"""Timing of commands without a core and without values: nothing is computed, and DRAM is sparse.

Durations never depend on values (docs/numerics.md, "Without values"), so cycles and events equal those of a run with
values whose commands are accepted at a distance of `submit.cost` each.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from npu_device.abi.errors import TicketError
from npu_device.config import NpuConfig
from npu_device.issue.plans import Plans
from npu_device.levels.critical_path import CriticalPath
from npu_device.levels.explain import Explanation, explain
from npu_device.levels.runner import Listed, Run, Runner, list_config
from npu_device.operations.limits import KEYS, POOL_KEY, TABLE
from npu_device.trace.events import What
from npu_device.trace.records import Batch
from npu_device.trace.run_spans import Spans
from npu_device.trace.stream import EventStream
from pyv_npu.errors import BadInputError, PyvNpuError, UsageError
from pyv_npu.observe.analysis.traffic import RoleTraffic
from toolchain.codegen import Command

LEVELS = ("IA_TIMING", "CA_HYBRID")


class LayerEnd(NamedTuple):
    """Layer with the cycle in which its last command completes."""

    layer: str
    cycle: int


class TimingRun(NamedTuple):
    """Result of a timing run."""

    cycles: int
    """Core cycle of the last completion."""
    layers: tuple[LayerEnd, ...]
    """Layers in the order of submission."""
    counters: Mapping[str, Any] | None
    """Object `npu` of results; None at IA_TIMING."""
    events: EventStream
    explanation: Explanation | None
    """Attribution of the cycles; None without `explained`."""
    traffic: RoleTraffic
    kv_engines: Mapping[str, int]
    """Cycles of the engines that encode and decode keys and values; empty without such work."""


def check_level(level: str) -> None:
    """Raise UsageError for a level without time."""
    if level not in LEVELS:
        raise UsageError(f"--sim-level {level}: timing alone is for {' and '.join(LEVELS)}; choose one")


def run_commands(
    commands: Sequence[Command],
    config: NpuConfig,
    level: str = "CA_HYBRID",
    *,
    memory: Mapping[int, bytes] | None = None,
    explained: bool = False,
    keep: bool = False,
    watch: Callable[[Batch], None] | None = None,
    kernels: Mapping[int, int] | None = None,
) -> TimingRun:
    """Time commands, in this order.

    `memory`: address -> bytes before the first command (token positions); `keep`: keep all events; `explained`:
    attribute the cycles, which keeps all events; `watch` receives the events in batches; `kernels`: cycles of the
    core's kernels by index of command (`ia.CoreKernels`), by default 0. UsageError for a level without time,
    PyvNpuError for a command that the device refuses, which no compiled model has.
    """
    check_level(level)
    events = EventStream(keep=keep or explained)
    traffic, analytic, works = RoleTraffic(), level == "IA_TIMING", kernels or {}
    events.subscribe(traffic.add)
    if watch is not None:
        events.subscribe(watch)
    listed = [
        Listed(command.descriptor, 0, command.block, works.get(index, 0)) for index, command in enumerate(commands)
    ]
    runner = Runner(list_config(config, len(listed)), events, values=False, analytic=analytic)
    layers, run = _run(runner, listed, commands, memory)
    counted = run.device.counters.to_json()
    explanation = None
    if explained:
        path = CriticalPath(runner.config, runner.memory).walk(runner.place(listed), [0] * len(listed))
        explanation = explain(Spans(events.batches()), runner.config, path)
    return TimingRun(
        max((layer.cycle for layer in layers), default=0), layers, None if analytic else counted, events, explanation,
        traffic, counted.get("kv_engines", {}),
    )  # fmt: skip


def layer_ends(
    commands: Sequence[Command],
    config: NpuConfig,
    memory: Mapping[int, bytes] | None = None,
    plans: Plans | None = None,
) -> tuple[LayerEnd, ...]:
    """Return the cycles of layers as in `run_commands` at CA_HYBRID, without events and counters. `plans`: shared by
    runs on this device. PyvNpuError as in `run_commands`."""
    listed = [Listed(command.descriptor, 0, command.block) for command in commands]
    runner = Runner(list_config(config, len(listed)), EventStream(), values=False)
    if plans is not None:
        runner.device.use_plans(plans)
    return _run(runner, listed, commands, memory)[0]


def _run(
    runner: Runner, listed: Sequence[Listed], commands: Sequence[Command], memory: Mapping[int, bytes] | None
) -> tuple[tuple[LayerEnd, ...], Run]:
    """Run commands; raise the first error that the device logged, with its layer."""
    completed: dict[int, int] = {}

    def note(batch: Batch) -> None:
        finish_events = batch[batch["what"] == What.DONE]
        completed.update(zip(finish_events["ticket"].tolist(), finish_events["cycle"].tolist(), strict=True))

    runner.events.subscribe(note)
    for address, data in (memory or {}).items():
        runner.memory.write_bytes(address, data)
    run = runner.run(listed)
    for entry in run.device.error_log:
        layer = commands[run.tickets.index(entry.ticket)].layer
        raise refusal(entry.code, entry.reason, f"layer {layer}: {entry.code.name}: {entry.reason}")
    last: dict[str, int] = {}
    for command, ticket in zip(commands, run.tickets, strict=True):
        last[command.layer] = max(completed[ticket], last.get(command.layer, 0))
    return tuple(LayerEnd(*item) for item in last.items()), run


def refusal(code: TicketError, reason: str, text: str) -> PyvNpuError:
    """Return the error of a command that the device refused, by its origin: a pool or limit that can be raised, keys,
    values or indices from the model and its inputs, or else a bug of the compiler."""
    if POOL_KEY in reason:
        return UsageError(text)
    if code is TicketError.KV_DATA:
        return BadInputError(text)
    if TABLE in reason:
        return BadInputError(f"{text}: give inputs whose indices are in the table, --input NAME=FILE.npy")
    return PyvNpuError(text if KEYS in reason else f"{text}; a bug of the compiler")
