"""Folder of a run's report: described before the run, so that an interrupted run can be repeated, too.

`record` in run.yaml describes the run: command line, versions, SHA-256 of the input files and, after the run, of its
events. `pyv-npu run --replay` reads it. manifest.json lists the files of the report.
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from pyv_native.files import MAX_FILE, check_input, write_bytes, write_text
from pyv_npu import manifest
from pyv_npu.boot import files_beside, find_program
from pyv_npu.config import Effective
from pyv_npu.config.render import provenance, render
from pyv_npu.errors import BadInputError
from pyv_npu.report.folder import RECORD_FILE, ReportFolder
from pyv_npu.report.page import render as render_page
from pyv_npu.sections import Note
from pyv_npu.text import as_json
from pyv_npu.versions import versions


class RunFolder:
    """Report folder, created before the run; UsageError when its target contains anything but a report.

    Files are written to `folder`, a draft beside the target. `put` moves the report to the target, `discard` leaves the
    target unchanged.
    """

    def __init__(
        self,
        place: Path,
        command: str,
        command_line: Sequence[str],
        effective: Effective,
        files: Iterable[str] = (),
        inside: Mapping[str, bytes] | None = None,
    ) -> None:
        """`files`: input files besides the program. `inside`: name -> content of inputs stored in the report."""
        self.place = place
        self.effective = effective
        self.finished = False
        """True if the folder has results."""
        self.cut = False
        """True if Ctrl-C has ended a run whose results are in the folder."""
        self.partial = False
        """True if all files of a run that was cut are written and marked as such."""
        self._report = ReportFolder(place)
        self.folder = self._report.draft
        program = effective.config.run.program
        try:
            inputs = fingerprints([program, *files_beside(program), *files])
            for name, data in (inside or {}).items():
                write_bytes(self.folder / name, data)
                inputs[str(place / name)] = sha256(data).hexdigest()
            self._record: dict[str, object] = {
                "command": command,
                "command_line": list(command_line),
                "directory": os.path.relpath(Path.cwd(), place.resolve()),
                "versions": versions(),
                "inputs_sha256": inputs,
            }
            self._describe()
        except BaseException:
            self._report.discard()
            raise

    def finish(self, result: Mapping[str, Any], text: str, effective: Effective) -> None:
        """Write result.json, as printed by `--json`, and summary.txt with `text` and the origins of parameters."""
        self.effective = effective
        runs = [result[mode] or {} for mode in ("loose", "tight") if mode in result] or [result]
        self.cut = self.cut or any(run.get("stop_reason") == "interrupted" for run in runs)
        self._record["events_sha256"] = event_hashes(result)
        self._describe()
        write_text(self.folder / "result.json", as_json(result))
        write_text(self.folder / "summary.txt", f"{text}\n{provenance(effective)}")
        self.finished = True

    def put(self) -> str:
        """Complete the report and move it to its target. It replaces an earlier report unless Ctrl-C cut the run.
        Return a message."""
        if self.cut and self._report.is_occupied:
            self.discard()
            return f"the earlier report stays in {self.place}: this run was interrupted"
        self._keep_inputs()
        self._describe()
        inputs = self._record["inputs_sha256"]
        assert isinstance(inputs, dict)
        manifest.write(self.folder, "report", inputs)
        self._report.put()
        self.folder = self.place
        return f"the report is in {self.place}"

    def discard(self) -> None:
        """Discard the report; its target is unchanged."""
        if self.folder != self.place:
            self._report.discard()

    def interrupted(self) -> str:
        """Complete the report after Ctrl-C, with a note on missing files, and move it to its target; an incomplete
        report does not replace an earlier report. Return a message."""
        place = self.place
        if self._report.placed:
            return f"the report is in {place}"
        if self._report.is_occupied:
            return f"the earlier report stays in {place}"
        if self.partial:
            self.put()
            return f"what was complete is in {place}"
        program = self.effective.config.run.program
        if self.finished:
            text = "interrupted while the report was written: files are missing; result.json has the figures"
            summary = self.folder / "summary.txt"
            write_text(summary, f"{program}: {text}\n\n{summary.read_text(encoding='utf-8')}")
        else:
            text = "interrupted before the run came to its end: there are no figures; run.yaml repeats it"
            result = {"schema": 1, "program": program, "exit_code": None, "stop_reason": "interrupted"}
            write_text(self.folder / "result.json", as_json(result))
            write_text(self.folder / "summary.txt", f"{program}: {text}\n")
        write_text(self.folder / "report.html", render_page(program, [Note(text, "warning")]))
        self.put()
        return f"a report that says so is in {place}"

    def _keep_inputs(self) -> None:
        """Copy inputs of the run from the earlier report at the target."""
        place = self.place.resolve()
        inputs = self._record["inputs_sha256"]
        assert isinstance(inputs, dict)
        for name in inputs:
            path = Path(name).resolve()
            if path.is_relative_to(place) and path.is_file():
                copy = self.folder / path.relative_to(place)
                if not copy.exists():
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, copy)

    def _describe(self) -> None:
        """Write run.yaml: every key with its value and origin."""
        write_text(self.folder / RECORD_FILE, render(self.effective, self._record))


def fingerprints(names: Iterable[str]) -> dict[str, str]:
    """Return name -> SHA-256 of each file, shipped firmware included; other names are ignored. OSError for an
    unreadable file."""
    hashes = {}
    for name in names:
        try:
            place = name if os.path.isfile(name) else find_program(name)
        except BadInputError:
            continue  # a built-in model, or a file whose absence the run reports
        check_input(place, MAX_FILE)
        hashes[name] = manifest.file_sha256(place)
    return hashes


def event_hashes(result: Mapping[str, Any]) -> dict[str, str]:
    """Return run ("run", or the mode of a comparison) -> SHA-256 of its events, for runs that were not cut."""
    runs = {mode: result[mode] for mode in ("loose", "tight") if mode in result} or {"run": result}
    return {
        name: run["events_sha256"]
        for name, run in runs.items()
        if run and run.get("events_sha256") and run.get("stop_reason", "exit") not in ("interrupted", "timeout")
    }
