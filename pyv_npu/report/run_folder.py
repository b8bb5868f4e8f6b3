"""The folder of a report: described before the run, so that an interrupted run can be repeated too.

`record` in run.yaml says what was run: command line, versions, SHA-256 of the files that were read and, once the run is
over, of its events. `pyv-npu run --replay` goes by it. manifest.json has the files of the report.
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
    """Made before the run; UsageError where its place is taken by something else than a report.

    Files are written to `folder`, a draft beside the place. `put` gives the report its place, `discard` leaves the
    place as it was.
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
        """`files`: what the run reads besides its program. `inside`: by name, what it reads from the report itself."""
        self.place = place
        self.effective = effective
        self.finished = False
        """True: the folder has results."""
        self.cut = False
        """True: Ctrl-C has ended a run whose results are in the folder."""
        self.partial = False
        """True: all files of a run that was cut are written, and say so."""
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
        """Write result.json, what `--json` prints, and summary.txt, what people see and where the parameters come
        from."""
        self.effective = effective
        runs = [result[mode] or {} for mode in ("loose", "tight") if mode in result] or [result]
        self.cut = self.cut or any(run.get("stop_reason") == "interrupted" for run in runs)
        self._record["events_sha256"] = event_hashes(result)
        self._describe()
        write_text(self.folder / "result.json", as_json(result))
        write_text(self.folder / "summary.txt", f"{text}\n{provenance(effective)}")
        self.finished = True

    def put(self) -> str:
        """Complete the report and rename it to its place. It replaces an earlier report, unless Ctrl-C cut the run.
        Return a message."""
        if self.cut and self._report.taken:
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
        """Discard the report; its place is as it was."""
        if self.folder != self.place:
            self._report.discard()

    def interrupted(self) -> str:
        """Complete the report after Ctrl-C: it takes its place, and says what is missing; before all files are written
        an earlier report stays. What happened, in words."""
        place = self.place
        if self._report.placed:
            return f"the report is in {place}"
        if self._report.taken:
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
        """Copy inputs that the run has read from the earlier report in its place."""
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
    """Return the SHA-256 of each file, by the name by which it was given; firmware of the package counts, other names
    do not. OSError: a file cannot be read."""
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
    """Run ("run", or the mode where there are two) -> SHA-256 of its events; only runs that came to their end."""
    runs = {mode: result[mode] for mode in ("loose", "tight") if mode in result} or {"run": result}
    return {
        name: run["events_sha256"]
        for name, run in runs.items()
        if run and run.get("events_sha256") and run.get("stop_reason", "exit") not in ("interrupted", "timeout")
    }
