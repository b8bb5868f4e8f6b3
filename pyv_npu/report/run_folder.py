"""The folder of a report: described before the run, so that an interrupted run can be repeated too.

`record` in run.yaml says what was run: command line, versions, SHA-256 of the files that were read and, once the run is
over, of its events. `pyv-npu run --replay` goes by it.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import file_digest
from pathlib import Path
from typing import Any

from pyv_npu.boot import files_beside, find_program
from pyv_npu.config import Effective
from pyv_npu.config.render import render
from pyv_npu.errors import BadInputError
from pyv_npu.report import page
from pyv_npu.report.folder import open_folder, write_text
from pyv_npu.tables import provenance
from pyv_npu.text import as_json
from pyv_npu.versions import versions


class RunFolder:
    """Made before the run; UsageError where its name is taken by something else."""

    def __init__(
        self, folder: Path, command: str, command_line: Sequence[str], effective: Effective, files: Iterable[str] = ()
    ) -> None:
        """`files`: what the run reads besides its program."""
        self.folder = folder
        self.effective = effective
        self.finished = False
        """Whether there are results in the folder."""
        open_folder(folder)
        program = effective.config.run.program
        self._record: dict[str, object] = {
            "command": command,
            "command_line": list(command_line),
            "versions": versions(),
            "inputs_sha256": fingerprints([program, *files_beside(program), *files]),
        }
        self._describe()

    def finish(self, result: Mapping[str, Any], text: str, effective: Effective) -> None:
        """result.json is what `--json` prints, summary.txt what people see and where the parameters come from."""
        self.effective = effective
        self.finished = True
        self._record["events_sha256"] = event_hashes(result)
        self._describe()
        write_text(self.folder / "result.json", as_json(result))
        write_text(self.folder / "summary.txt", f"{text}\n{provenance(effective)}")

    def interrupted(self) -> None:
        """Ctrl-C ended the command before there were results: say so in place of them."""
        program = self.effective.config.run.program
        text = "interrupted before the run came to its end: there are no figures; run.yaml repeats it"
        result = {"schema": 1, "program": program, "exit_code": None, "stop_reason": "interrupted"}
        write_text(self.folder / "result.json", as_json(result))
        write_text(self.folder / "summary.txt", f"{program}: {text}\n")
        write_text(self.folder / "report.html", page.render(program, [page.Note(text, "warning")]))

    def _describe(self) -> None:
        """run.yaml: every key with its value and origin."""
        write_text(self.folder / "run.yaml", render(self.effective, self._record))


def fingerprints(names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of each file, by the name by which it was given; firmware of the package counts, other names do not."""
    found = {}
    for name in names:
        try:
            with find_program(name).open("rb") as file:
                found[name] = file_digest(file, "sha256").hexdigest()
        except (BadInputError, OSError):
            continue  # a built-in model, or a file whose absence the run reports
    return found


def event_hashes(result: Mapping[str, Any]) -> dict[str, str]:
    """Run ("run", or the mode where there are two) -> SHA-256 of its events; only runs that came to their end."""
    runs = {mode: result[mode] for mode in ("loose", "tight") if mode in result} or {"run": result}
    return {
        name: run["events_sha256"]
        for name, run in runs.items()
        if run and run.get("events_sha256") and run.get("stop_reason", "exit") not in ("interrupted", "timeout")
    }
