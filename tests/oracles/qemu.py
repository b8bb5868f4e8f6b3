"""`qemu-system-riscv32 -M virt`, or riscv64, as an oracle: a hart without hypervisor, and without supervisor mode
unless asked for.

The machine is driven through QMP, so the end of a program is an event and not a time-out. Programs end by a store
to the test finisher: a reset, which stops QEMU with its memory as it is (an exit code would end the process).
"""

import json
import subprocess
import tempfile
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import IO, Any

from external_tools import QEMU, needs

FINISHER, RESET = 0x10_0000, 0x7777
"""The store that ends a program."""
TIMEOUT = 600
"""Seconds after which a machine that has not finished is ended."""

needs_qemu = needs(QEMU)


class Qemu:
    """One machine, halted before its first instruction. `flags` are more arguments of QEMU's command line."""

    def __init__(
        self, *flags: str, compressed: bool = True, floating: str = "", supervisor: bool = False, xlen: int = 32,
        sstc: bool = False,
    ) -> None:  # fmt: skip
        """`floating`: the letters of floating point that the hart has, of "fd"."""
        have = {"c": compressed, "f": "f" in floating, "d": "d" in floating}
        switches = ",".join(f"{letter}={'on' if on else 'off'}" for letter, on in have.items())
        mode = "on" if supervisor else "off"
        cpu = f"rv{xlen},s={mode},h=off,sstc={'on' if sstc else 'off'},marchid=0,mimpid=0,{switches}"
        machine = ("-M", "virt", "-cpu", cpu, "-bios", "none", "-m", "16", "-display", "none", "-serial", "none")
        self._process = subprocess.Popen(
            [QEMU.replace("32", str(xlen)), *machine, "-S", "-no-reboot", "-no-shutdown", "-qmp", "stdio", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._watchdog = Timer(TIMEOUT, self._process.kill)
        self._watchdog.start()
        self._events: list[str] = []
        self._line()
        self._ask("qmp_capabilities")

    def __enter__(self) -> "Qemu":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._watchdog.cancel()
        self._process.kill()
        self._process.communicate()

    @property
    def log(self) -> IO[bytes]:
        """What `-d` writes. It must be read while the machine runs, if there is much of it."""
        assert self._process.stderr is not None
        return self._process.stderr

    def start(self) -> None:
        self._ask("cont")

    def finish(self) -> None:
        """Wait until the program has stored to the finisher."""
        while "SHUTDOWN" not in self._events:
            self._line()

    def memory(self, address: int, size: int) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "memory"
            self._ask("pmemsave", val=address, size=size, filename=str(file))
            return file.read_bytes()

    def _ask(self, command: str, **arguments: int | str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._line()
        while "event" in answer:
            answer = self._line()
        if "error" in answer:
            raise RuntimeError(f"QEMU refuses {command}: {answer['error']['desc']}")

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"QEMU ended: {self._process.communicate()[1].decode(errors='replace')}")
        answer: dict[str, Any] = json.loads(line)
        if "event" in answer:
            self._events.append(answer["event"])
        return answer
