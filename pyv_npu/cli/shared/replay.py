"""`pyv-npu run --replay DIR/run.yaml`: repeat a recorded run with the same inputs, and compare the events."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pyv_native.files import MAX_TEXT, check_input
from pyv_npu import manifest
from pyv_npu.cli.shared import options
from pyv_npu.cli.shared.output import Call, diagnose
from pyv_npu.config import with_values
from pyv_npu.config.yaml_file import read_yaml
from pyv_npu.errors import BadInputError, PyvNpuError, UsageError
from pyv_npu.manifest import word_in, words_in
from pyv_npu.report.run_folder import event_hashes, fingerprints
from pyv_npu.versions import versions

FILE = "run.yaml"
OPTION = "--replay"
_OUTPUT = ("json", "report", "trace", "profile", "traceback", "trusted")
"""Options that select the output of the run and do not change it."""
_VERBS = ("run", "compare", "serve")
"""Verbs whose reports contain a record."""


class RunRecord(NamedTuple):
    """Section `record` of a run.yaml."""

    path: Path
    command_line: list[str]
    directory: str
    """Directory of the run, relative to the report."""
    versions: Mapping[str, str]
    inputs_sha256: Mapping[str, str]
    events_sha256: Mapping[str, str]
    """Empty if the run was not complete."""

    def find_inputs(self) -> dict[str, str]:
        """Return the current path of each input file by its recorded name.

        A file is searched for relative to the current directory, to the directory of the run, and beside run.yaml, and
        is identified by its SHA-256. Raises BadInputError for a missing or changed file.
        """
        folder = self.path.parent
        paths = {}
        for name, digest in self.inputs_sha256.items():
            relative = Path(name)
            places = (name, *map(str, (folder / self.directory / relative, folder / relative.name, relative.name)))
            present = fingerprints(places)
            match = next((place for place in places if present.get(place) == digest), None)
            if match is None and present:
                other, now = next(iter(present.items()))
                raise BadInputError(
                    f"{OPTION} {self.path}: {other}: is another file than that of the recorded run (SHA-256 "
                    f"{now[:12]}..., recorded {digest[:12]}...); put that one back"
                )
            if match is None:
                raise BadInputError(
                    f"{OPTION} {self.path}: {name}: is neither here nor where the run was started; put it back"
                )
            paths[name] = match
        return paths

    def check(self, result: Mapping[str, Any]) -> None:
        """Report that the events are as recorded; raise PyvNpuError for a run whose events differ."""
        sums = event_hashes(result)
        for name, digest in self.events_sha256.items():
            if sums.get(name) != digest:
                versions_here = versions()
                other = [f"{part} {version}, here {versions_here.get(part)}" for part, version in self.versions.items()
                         if versions_here.get(part) != version]  # fmt: skip
                raise PyvNpuError(
                    f"{OPTION} {self.path}: the events of {name} differ (events_sha256 {str(sums.get(name))[:12]}..., "
                    f"recorded {digest[:12]}...); versions that differ: {', '.join(other) or 'none'}"
                )
        if self.events_sha256:
            diagnose(f"replayed {self.path}: the events are those of the recorded run")
        else:
            diagnose(f"replayed {self.path}, which did not come to its end: nothing to compare with")


def execute(args: argparse.Namespace, call: Call) -> int:
    """Check the inputs, repeat the recorded run, and compare the events."""
    recorded = read(args.replay)
    _only(args, call.parse(["run", OPTION, str(args.replay)]))
    replay = call.parse(recorded.command_line[1:])
    harm = options.harm(options.effective(replay, str(recorded.path)).config)
    if harm and not args.trusted:
        does = next(iter(harm.values()))
        raise UsageError(f"{OPTION} {recorded.path}: the run {does}; add --trusted if you know who made this report")
    relocations = {name: place for name, place in recorded.find_inputs().items() if place != name}
    _relocate(replay, relocations)
    call.command_line, call.recorded = [relocations.get(word, word) for word in recorded.command_line], recorded
    effective = options.effective(replay, str(recorded.path))
    config = effective.config
    if relocations.keys() & {config.run.program, *config.files}:
        named = {"run.program": config.run.program, "energy.table": config.energy.table}
        now: dict[str, object] = {key: relocations.get(name, name) for key, name in named.items()}
        now["plugins"] = [relocations.get(name, name) for name in config.plugins]
        effective = effective.adopt(with_values(config, now), OPTION)
    return int(replay.perform(replay, effective, args, call))


def _relocate(replay: argparse.Namespace, relocations: Mapping[str, str]) -> None:
    """Replace the paths of moved files in a command line."""

    def now(value: Any) -> Any:
        if isinstance(value, str | Path):
            return type(value)(relocations.get(str(value), value))
        return type(value)(now(item) for item in value) if type(value) in (list, tuple) else value

    for name, value in vars(replay).items():
        setattr(replay, name, now(value))


def read(path: Path) -> RunRecord:
    """Return the record of a report; raise BadInputError if there is none."""
    file = path / FILE if path.is_dir() else path
    try:
        check_input(file, MAX_TEXT)
        manifest.check(file)
        record = read_yaml(file.read_text(encoding="utf-8"), str(file))["record"]
        command_line = [str(word) for word in record["command_line"]]
        if command_line[1:2] not in ([verb] for verb in _VERBS):
            raise BadInputError(
                f"{OPTION} {file}: command_line {' '.join(command_line[:2])!r}: runs and comparisons are repeated; "
                "name the run.yaml of a report"
            )
        return RunRecord(
            file, command_line, word_in(record.get("directory", "")), words_in(record["versions"]),
            words_in(record["inputs_sha256"]), words_in(record.get("events_sha256", {})),
        )  # fmt: skip
    except OSError as error:
        raise BadInputError(f"{OPTION} {file}: {error.strerror}; name the run.yaml of a report") from None
    except (yaml.YAMLError, KeyError, TypeError, ValueError):
        raise BadInputError(f"{OPTION} {file}: has no record of a run; name the run.yaml of a report") from None


def _only(args: argparse.Namespace, defaults: argparse.Namespace) -> None:
    """Raise UsageError for an option that contradicts the record."""
    changed = [name for name, value in vars(args).items() if name not in _OUTPUT and value != getattr(defaults, name)]
    if changed:
        allowed = ", ".join(f"--{name}" for name in _OUTPUT)
        name = "settings of the run" if changed[0] == "settings" else changed[0]
        raise UsageError(f"{OPTION}: repeats a run as it was recorded, {name} cannot change; only {allowed} go with it")
