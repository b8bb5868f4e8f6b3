"""Options of `run`, `compare` and `compile` that set configuration keys."""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from pyv_npu.cli.shared.output import OK, show
from pyv_npu.config import Config, Effective, load, serial
from pyv_npu.config.effective import COMMAND_LINE, check_isa
from pyv_npu.config.schema import flatten
from pyv_npu.errors import UsageError

PROGRAMS = "an ELF, a name that `pyv-npu info` lists, or an ONNX model"
MODE = "npu.mode"
PLUGINS = "plugins"
SERIAL = serial.KEY
_KEYS: tuple[tuple[tuple[str, ...], str, str, str], ...] = (
    (("--sim-level", "--sim_level"), "run.sim_level", "LEVEL", "IA, IA_TIMING, CA_HYBRID, CA_FULL or L0..L3"),
    (("--mmio-base",), "platform.mmio_base", "ADDRESS", "where the NPU's registers are"),
    (("--isa",), "core.custom", "LIST", "custom instructions present in tight mode: enqcmd,twait,tbar,tstat"),
    (("--core",), "core.engine", "ENGINE", "fast, reference or pyv"),
    (("--max-cycles",), "run.max_cycles", "N", "stop after N core cycles"),
    (("--timeout",), "run.timeout", "SECONDS", "stop after so much time of the host"),
    (
        ("--semihosting",),
        "semihosting.folder",
        "FOLDER",
        "console, files in a folder, clock and command line for programs",
    ),
    (("--seed",), "run.seed", "N", "of every random table"),
)
_MODE = (("--mode", "--te-mode", "--te_mode"), MODE, "MODE", "how firmware submits: loose or tight")
_RING = (("--queue-size",), "npu.queue.size", "N", "entries of the ring of loose mode, a power of two")
_QUEUE = (("--queue-size",), "queue_size", "N", "entries of the ring in loose mode, of the device queue in tight mode")
"""`queue_size` is not a key; `pyv_npu.config.effective.QUEUE_SIZE` maps it to the key of the mode."""


def arguments(parser: argparse.ArgumentParser, with_mode: bool) -> None:
    """Add the options that `effective` reads; those that set a key are appended to `settings` in command-line order."""
    for names, key, metavar, text in (_MODE, _QUEUE, *_KEYS) if with_mode else (_RING, *_KEYS):
        help_text = f"{text} ({key})" if "." in key else text
        parser.add_argument(
            *names, dest="settings", action=SettingAction, type=partial(setting, key), metavar=metavar, help=help_text
        )
    _pair_argument(
        parser, "--arg", "run.args.", "NAME=N", "a value that the firmware finds in npu_bootinfo; repeatable"
    )
    setting_arguments(parser)
    parser.add_argument(
        "--plugin", dest="settings", action=_Item, const=PLUGINS, metavar="FILE.py",
        help=f"devices and instructions of your own (pyv-npu docs extending); repeatable ({PLUGINS})",
    )  # fmt: skip
    parser.add_argument(
        "--serial", dest="settings", action=_Item, const=SERIAL, metavar="LINE",
        help=f"the UART's line to the host: {serial.FORMS}; Ctrl-A x on a terminal ends the run; again: a second UART "
        f"({SERIAL})",
    )  # fmt: skip
    parser.add_argument("--preset", help="a timing preset or configuration that `pyv-npu info` lists, or a YAML file")
    parser.add_argument("--print-config", action="store_true", help="print the effective configuration and stop")


class SettingAction(argparse.Action):
    """Action that appends a key and its value to `settings`; UsageError if the key already has another value."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        key, value = values
        earlier = dict(namespace.settings).get(key, value)
        if earlier != value:
            raise UsageError(f"{option}: {key} = {value}, and it is {earlier} on the same command line; drop one")
        namespace.settings = [*namespace.settings, values]


class _Item(argparse.Action):
    """Action that appends an item to the list of the key in `const`."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if "," in values:
            raise UsageError(f"{option} {values}: the name of a file has no comma; rename it")
        previous = dict(namespace.settings).get(self.const)
        namespace.settings = [*namespace.settings, (self.const, values if previous is None else f"{previous},{values}")]


def setting_arguments(parser: argparse.ArgumentParser) -> None:
    """Add only `--set`, `--config` and `--trusted`."""
    parser.set_defaults(settings=[])
    _pair_argument(parser, "--set", "", "KEY=VALUE", "any key of the configuration; repeatable")
    text = "YAML, or a name that `pyv-npu info` lists; later ones win"
    parser.add_argument("--config", action="append", default=[], metavar="FILE", help=text)
    text = "configurations, a SWEEP.yaml and a record may load plugins, start engines and open files"
    parser.add_argument("--trusted", action="store_true", help=text)


def _pair_argument(parser: argparse.ArgumentParser, name: str, prefix: str, metavar: str, text: str) -> None:
    kind = partial(_pair, name, prefix, metavar)
    parser.add_argument(name, dest="settings", action=SettingAction, type=kind, metavar=metavar, help=text)


HARM = {
    "plugins": "loads",
    "npu.te.external.engine": "starts",
    "semihosting.folder": "lets its program open files in",
    "semihosting.input": "lets its program read",
    SERIAL: "connects its program to",
}
"""Key -> effect on the host, which only a trusted file may have."""


def harm(config: Config) -> dict[str, str]:
    """Return the effects of a configuration on the host, by key."""
    values = {key: value for key, value in flatten(config).items() if key in HARM and value}
    return {key: f"{HARM[key]} {value if isinstance(value, str) else ' '.join(value)}" for key, value in values.items()}


def check_trusted(effective: Effective, args: argparse.Namespace) -> None:
    """Raise UsageError if an untrusted file, rather than the command line, sets a key that affects the host."""
    if args.trusted:
        return
    for key, does in harm(effective.config).items():
        origin = effective.origins.get(key, COMMAND_LINE)
        if origin != COMMAND_LINE:
            raise UsageError(f"{origin}: {key}: the file {does}; add --trusted if you know who made it")


def setting(key: str, value: str) -> tuple[str, str]:
    """Return the pair that an option appends to `settings`."""
    return key, value


def _pair(option: str, prefix: str, form: str, value: str) -> tuple[str, str]:
    name, equals, text = value.partition("=")
    if not (name and equals):
        raise UsageError(f"{option} {value}: must have the form {form}")
    return prefix + name, text


def effective(args: argparse.Namespace, record: str | None = None, *, live: bool = False) -> Effective:
    """Return the effective configuration of a command line.

    `record`: run.yaml that replaces its files and preset. `live`: serial lines with live input are allowed.
    """
    settings = dict(args.settings)
    if record is None and args.program is not None:
        settings["run.program"] = args.program
    files: Sequence[str] = args.config if record is None else [record]
    result = load(files, args.preset if record is None else None, settings)
    check_isa(result, "--isa")
    lines = result.config.platform.serial
    if not live and serial.is_live(lines):
        raise UsageError(
            f"{SERIAL} = {','.join(lines)}: its input comes at a time of the host, which no other run repeats; "
            "give --serial file:PATH, or use `pyv-npu run`"
        )
    if record is None:
        check_trusted(result, args)
    return result


def print_config(effective: Effective) -> int:
    """Print the effective configuration; return the exit code."""
    from pyv_npu.config.render import render

    show(render(effective))
    return OK
