"""Sessions in pages of docs/: commands with their output, executed as written.

`console` blocks have lines `$ command` for a shell, `gdb` blocks lines `(gdb) command` for GDB. A command is followed
by its output, errors included. A `python` block whose first line is `# NAME` defines a file for later commands, as does
a `json NAME` or `yaml NAME` block. A shell command with `--gdb PORT` runs concurrently with the next `gdb` block; the
page shows its output before GDB connects. The working folder is named decoder and contains `firmware`, whose sources
GDB lists.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = ("tutorial", "tutorial-architect", "tutorial-compiler", "tutorial-hardware", "tutorial-microarchitect")
PAGES = {name: ROOT / "docs" / f"{name}.md" for name in ("debugging", "llm", "python", "serving", *TUTORIALS)}
"""Pages with sessions."""
_BLOCK = re.compile(r"(?<=^```)(console|gdb|python|json \S+|yaml \S+)\n(.*?)(?=^```)", re.MULTILINE | re.DOTALL)
_PROMPT = {"console": "$ ", "gdb": "(gdb) "}
_PORT = re.compile(r"--gdb (\d+)")


def played(page: str) -> str:
    """Return the page with the output of its commands in this checkout."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "decoder"
        folder.mkdir()
        (folder / "firmware").symlink_to(ROOT / "firmware")
        tools = folder / ".bin"
        tools.mkdir()
        for tool, module in (("pyv-npu", "-m pyv_npu "), ("python", "")):
            (tools / tool).write_text(f'#!/bin/sh\nexec {sys.executable} {module}"$@"\n')
            (tools / tool).chmod(0o755)
        paths = {"PATH": str(tools), "PYTHONPATH": str(ROOT)}
        environment = os.environ | {
            name: os.pathsep.join(filter(None, (first, os.environ.get(name)))) for name, first in paths.items()
        }
        return played_in(page, folder, env=environment)


def played_in(page: str, folder: Path, **process: Any) -> str:
    """Return the page with the output of its commands in a folder. `process`: arguments of `subprocess`."""
    with _Player(folder, process) as player:
        return _BLOCK.sub(player.block, page)


class _Player:
    """Executor of the blocks of a page in a folder."""

    def __init__(self, folder: Path, process: dict[str, Any]) -> None:
        self._folder = folder
        self._process = process
        self._simulator: subprocess.Popen[str] | None = None
        self._ports = "", ""

    def __enter__(self) -> "_Player":
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def block(self, found: re.Match[str]) -> str:
        kind, text = found.groups()
        name = text.splitlines()[0].removeprefix("# ") if kind == "python" else kind.partition(" ")[2]
        if name:
            (self._folder / name).write_text(text)
            return found[0]
        prompt = _PROMPT[kind]
        commands = [line.removeprefix(prompt) for line in text.splitlines() if line.startswith(prompt)]
        if kind == "gdb":
            return f"{kind}\n{self._gdb(commands)}"
        return f"{kind}\n" + "".join(f"{prompt}{command}\n{self._shell(command)}" for command in commands)

    def _shell(self, command: str) -> str:
        port = _PORT.search(command)
        if port is not None:
            return self._simulate(command, port[1])
        done = subprocess.run(
            ["bash", "-c", command], cwd=self._folder, timeout=600, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **self._process,
        )  # fmt: skip
        return done.stdout

    def _simulate(self, command: str, port: str) -> str:
        """Start a run that waits for GDB, and return its output until then."""
        self._end()
        self._simulator = subprocess.Popen(
            ["bash", "-c", "exec " + _PORT.sub("--gdb 0", command)], cwd=self._folder,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **self._process,
        )  # fmt: skip
        assert self._simulator.stderr is not None
        line = self._simulator.stderr.readline()
        self._ports = port, line.rpartition(":")[2].strip()
        return line.replace(f":{self._ports[1]}", f":{port}")

    def _gdb(self, commands: list[str]) -> str:
        shown, used = self._ports
        given = ["set pagination off", "set confirm off"]
        for command in commands:
            quoted = command.replace("\\", "\\\\").replace('"', '\\"')
            given += [f"echo {_PROMPT['gdb']}{quoted}\\n", re.sub(rf":{shown}\b", f":{used}", command)]
        done = subprocess.run(
            ["gdb-multiarch", "-nx", "-batch", *(part for command in given for part in ("-ex", command))],
            cwd=self._folder, timeout=120, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            **self._process | {"env": self._process["env"] | {"LC_ALL": "C", "COLUMNS": "118"}},
        )  # fmt: skip
        self._end()
        return done.stdout

    def _end(self) -> None:
        if self._simulator is not None:
            self._simulator.kill()
            self._simulator.communicate()
            self._simulator = None
