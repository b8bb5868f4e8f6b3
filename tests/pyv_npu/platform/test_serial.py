"""Lines of the UARTs: input from files is part of the machine, that of terminals and sockets comes while it runs."""

import json
import os
import re
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from external_tools import GCC, PICOLIBC, needs

import pyv_npu
from pyv_ext.engines.core import StopReason
from pyv_npu.cli import main
from pyv_npu.config import load
from pyv_npu.platform import Platform
from pyv_npu.pytest_plugin import Bench
from pyv_npu.snapshot import Snapshot
from toolchain.gnu import build_program

ECHO = """
.equ UART, {uart}
_start: li   s0, UART
        li   s2, 0x10000000
        li   s1, 'q'
        li   t0, {delay}
wait:   addi t0, t0, -1
        bnez t0, wait
        li   t0, 1
        sb   t0, 2(s0)          # FIFO on, which clears the receiver
        li   t0, '?'
        sb   t0, 0(s2)
loop:   lbu  t0, 5(s0)
        andi t0, t0, 1
        beqz t0, loop
        lbu  a0, 0(s0)
        beq  a0, s1, end
        addi a0, a0, 1
        sb   a0, 0(s2)
        j    loop
end:    li   t0, 0x100000
        li   t1, 0x73333
        sw   t1, 0(t0)
        j    .
"""
"""Answers each character by the next one on the first UART; `q` ends it with exit code 7."""
SLEEPER = """
_start: la   t0, taken
        csrw mtvec, t0
        li   t0, 0x0c000000
        li   t1, 1
        sw   t1, {source}*4(t0)
        li   t2, 0x0c002000
        li   t1, 1 << {source}
        sw   t1, 0(t2)
        li   s0, {uart}
        li   t0, 1
        sb   t0, 1(s0)          # an interrupt for each character
        li   t0, 0x800
        csrw mie, t0
        csrsi mstatus, 8
        li   t0, '?'
        sb   t0, 0(s0)
sleep:  wfi
        j    sleep
        .balign 4
taken:  li   t0, 0x0c200004
        lw   s3, 0(t0)
        lbu  a0, 0(s0)
        li   t1, 0x100000
        slli a0, a0, 16
        li   t2, 0x3333
        or   a0, a0, t2
        sw   a0, 0(t1)
        j    .
"""
"""Waits for a character by WFI; its code is the exit code."""
UART, UART1 = 0x1000_0000, 0x1000_1000


def echo(uart: int = UART, delay: int = 100) -> str:
    return ECHO.format(uart=uart, delay=delay)


def machine(text: str, lines: list[str], engine: str = "fast", **keys: object) -> Platform:
    return Bench().load_assembly(text, settings={"platform.serial": lines, "core.engine": engine, **keys})


@pytest.fixture
def typed(tmp_path: Path) -> Path:
    path = tmp_path / "typed"
    path.write_bytes(b"HAL 9000, and more than a FIFO holds" + b"q")
    return path


ANSWER = "?" + "".join(chr(ord(c) + 1) for c in "HAL 9000, and more than a FIFO holds")


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [1, 20_000, 2_000_000])
def test_a_file_is_typed_into_the_program(typed: Path, delay: int) -> None:
    """None of it is lost, also where the program sets its UART up late; and it is the same on each engine."""
    ends = set()
    for engine in ("fast", "reference") if delay < 100_000 else ("fast",):
        platform = machine(echo(delay=delay), [f"file:{typed}"], engine)
        stop = platform.run()
        assert (stop.reason, stop.code, platform.uart.text) == (StopReason.EXIT, 7, ANSWER)
        ends.add(platform.cycle)
    assert len(ends) == 1


def test_a_program_without_a_set_up_gets_its_input_too(typed: Path) -> None:
    text = echo().replace("sb   t0, 2(s0)", "nop").replace("sb   t0, 0(s2)\nloop", "nop\nloop")
    platform = machine(text, [f"file:{typed}"])
    assert platform.run().code == 7
    assert platform.uart.text == ANSWER[1:]


def test_the_second_uart_has_input_and_an_interrupt_of_its_own(typed: Path) -> None:
    platform = machine(echo(UART1), ["none", f"file:{typed}"])
    assert platform.run().code == 7
    assert platform.uart.text == ANSWER
    platform = machine(SLEEPER.format(uart=UART1, source=9), ["none", f"file:{typed}"])
    assert platform.run().code == ord("H")
    assert (platform.uarts[1].text, platform.uart.text) == ("?", "")


def test_without_a_second_line_there_is_no_second_uart(typed: Path) -> None:
    platform = machine(echo(UART1), [f"file:{typed}"])
    assert platform.run(until=10_000).reason is not StopReason.EXIT
    assert platform.hart.csrs.mcause in (1, 7)


def test_input_goes_with_snapshots(typed: Path) -> None:
    def new(lines: list[str]) -> Platform:
        return machine(echo(delay=20_000), lines)

    lines = [f"file:{typed}"]
    free = new(lines)
    free.run()
    for cycle in (15_000, free.cycle - 300):  # before the program has set the UART up, and in the middle of the input
        saved = new(lines)
        saved.run(until=cycle)
        snapshot = Snapshot.from_bytes(saved.save().to_bytes())
        restored = new(lines)
        restored.restore(snapshot)
        assert restored.run().code == 7
        assert (restored.cycle, restored.uart.text) == (free.cycle, ANSWER)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("stdin", "platform.serial = stdin: must be stdio, stdio:line, pty, tcp:[HOST:]PORT, unix:PATH, file:PATH or"),
        ("stdio:raw", "platform.serial = stdio:raw: must be"),
        ("tcp:70000", "platform.serial = tcp:70000: must be"),
        ("tcp:", "platform.serial = tcp:: must be"),
        ("file:", "platform.serial = file:: must be"),
        ("file:/no/such", "platform.serial = file:/no/such: No such file or directory; name a file"),
        ("none,pty,file:x", "there are 2 UARTs at most"),
        ("stdio,stdio:line", "the terminal is one line"),
    ],
)
def test_a_line_that_cannot_be_is_one_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = [word for part in line.split(",") for word in ("--serial", part)]
    assert main(["run", "hello", *options]) in (64, 65)
    (text,) = capsys.readouterr().err.splitlines()
    assert message in text


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["compare", "hello", "--serial", "pty"], "its input comes at a time of the host, which no other run repeats"),
        (["run", "hello", "--serial", "pty", "--gdb", "0"], "--gdb: needs input that is known before the run"),
        (
            ["run", "hello", "--serial", "stdio", "--json"],
            "--json: standard output has the result alone; give --serial",
        ),
        (["run", "mlp", "--sim-level", "IA", "--serial", "pty"], "platform.serial: is about the core, and this run"),
    ],
)
def test_a_line_that_does_not_fit_the_command(
    command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 64
    assert message in capsys.readouterr().err


def test_a_configuration_connects_nothing_unless_it_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "npu.yaml").write_text("platform:\n  serial: [pty]\n")
    assert main(["run", "hello", "--config", str(tmp_path / "npu.yaml")]) == 64
    assert "connects its program to pty; add --trusted" in capsys.readouterr().err


# -- live lines ------------------------------------------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path: Path) -> Callable[[str], str]:
    def build(text: str) -> str:
        (tmp_path / "guest.s").write_text(text)
        assert main(["asm", str(tmp_path / "guest.s"), "-o", str(tmp_path / "guest.elf")]) == 0
        return str(tmp_path / "guest.elf")

    return build


@contextmanager
def running(
    *options: str, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.PIPE
) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "pyv_npu", "run", *options]
    process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def told(process: "subprocess.Popen[bytes]", pattern: str) -> str:
    """What the run says of its line."""
    assert process.stderr is not None
    line = process.stderr.readline().decode()
    found = re.fullmatch(rf"pyv-npu: serial 0: {pattern}\n", line)
    assert found is not None, line
    return found[1]


def expect(read: Callable[[], bytes], text: bytes) -> None:
    """Read until `text` has come."""
    seen = b""
    while text not in seen:
        data = read()
        assert data, seen
        seen += data


def test_a_pseudo_terminal(programs: Callable[[str], str]) -> None:
    with running(programs(echo()), "--serial", "pty", "--json") as process:
        terminal = os.open(told(process, "(/dev/.*)"), os.O_RDWR | os.O_NOCTTY)
        os.write(terminal, b"ab\x03")
        expect(lambda: os.read(terminal, 100), b"bc\x04")
        os.write(terminal, b"q")
        out, _ = process.communicate(timeout=60)
        os.close(terminal)
    assert process.returncode == 7
    assert json.loads(out)["uart"] == "?bc\x04"


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_socket(kind: str, programs: Callable[[str], str], tmp_path: Path) -> None:
    """The run begins when a client has come; another one may follow."""
    spec = "tcp:0" if kind == "tcp" else f"unix:{tmp_path / 'line'}"
    with running(programs(echo()), "--serial", spec) as process:
        where = told(process, "waiting for a client at (.*)")
        for text, answer in ((b"a", b"?b"), (b"x", b"y"), (b"q", None)):
            if kind == "tcp":
                host, port = where.removeprefix("tcp:").split(":")
                assert host == "127.0.0.1"
                client = socket.create_connection((host, int(port)), timeout=30)
            else:
                client = socket.socket(socket.AF_UNIX)
                client.connect(where.removeprefix("unix:"))
            with client:
                client.sendall(text)
                if answer is not None:
                    expect(partial(client.recv, 100), answer)
        process.communicate(timeout=60)
    assert process.returncode == 7
    assert not (tmp_path / "line").exists()


def test_a_port_that_is_taken_is_one_line(programs: Callable[[str], str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with running(programs(echo()), "--serial", f"tcp:{port}") as process:
            _, error = process.communicate(timeout=60)
    assert process.returncode == 65
    assert error.decode().count("\n") == 1
    assert f"port {port}: " in error.decode() and "choose another one" in error.decode()


@contextmanager
def terminal_of(*options: str) -> Iterator[tuple[int, int, "subprocess.Popen[bytes]"]]:
    """A run whose terminal is ours: our end, its end, the process."""
    ours, theirs = os.openpty()
    try:
        with running(*options, stdin=theirs, stdout=theirs) as process:
            yield ours, theirs, process
    finally:
        os.close(ours)
        os.close(theirs)


def test_keys_of_a_terminal_arrive_as_they_are_pressed(programs: Callable[[str], str]) -> None:
    """Ctrl-C is the program's, Ctrl-A twice sends it, Ctrl-A x leaves; then the terminal is as it was."""
    with terminal_of(programs(echo()), "--serial", "stdio") as (ours, theirs, process):
        before = termios.tcgetattr(theirs)
        expect(lambda: os.read(ours, 100), b"?")
        os.write(ours, b"a\x03\x01\x01")
        expect(lambda: os.read(ours, 100), b"b\x04\x02")
        os.write(ours, b"\x01x")
        expect(lambda: os.read(ours, 1000), b"interrupted")
        process.wait(60)
        assert termios.tcgetattr(theirs) == before
    assert process.returncode == 130


def test_lines_of_a_terminal_are_edited_by_it(programs: Callable[[str], str]) -> None:
    with terminal_of(programs(echo()), "--serial", "stdio:line") as (ours, _, process):
        expect(lambda: os.read(ours, 100), b"?")
        os.write(ours, b"aX\x7f")  # the terminal deletes the X
        time.sleep(0.2)
        os.write(ours, b"b\n")
        expect(lambda: os.read(ours, 100), b"bc\x0b")
        os.write(ours, b"q\n")
        expect(lambda: os.read(ours, 4000), b"exit code 7")
        process.wait(60)
    assert process.returncode == 7


@needs(GCC, PICOLIBC)
def test_the_example_is_typed_into(tmp_path: Path) -> None:
    elf, typed = tmp_path / "shell.elf", tmp_path / "typed"
    build_program(elf, [Path(pyv_npu.__file__).parent / "examples" / "shell.c"], flags=["-Wall", "-Wextra", "-Werror"])
    typed.write_bytes(b"echo hullo\x7f\ro\rpoke 0x80400000 0x2a\npeek 0x80400000\nhalf\x03exit 77\n")
    platform = Platform(load(overrides={"platform.serial": [f"file:{typed}"]}).config)
    platform.load(elf)
    assert platform.run().code == 77
    assert platform.uart.text.splitlines()[1:] == [
        "> echo hullo\b \b", "hull", "> o", "o: no such command", "> poke 0x80400000 0x2a", "> peek 0x80400000",
        "0000002a", "> half^C", "> exit 77",
    ]  # fmt: skip


def test_a_program_that_sleeps_waits_for_input_until_none_can_come(programs: Callable[[str], str]) -> None:
    elf = programs(SLEEPER.format(uart=UART, source=10))
    with running(elf, "--serial", "stdio", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        expect(lambda: process.stdout.read(1), b"?")
        time.sleep(0.3)
        assert process.poll() is None
        process.stdin.write(b"M")
        process.stdin.flush()
        process.communicate(timeout=60)
    assert process.returncode == ord("M")
    with running(elf, "--serial", "stdio") as process:
        process.communicate(timeout=60)
    assert process.returncode == 76, "a deadlock"


def test_a_program_that_polls_does_not_run_ahead_of_the_host(programs: Callable[[str], str]) -> None:
    """1,000,000 Hz: a second of polling is about a million cycles."""
    elf = programs(echo())
    options = ["--set", "npu.clock_hz=1000000", "--serial", "stdio", "--serial", "none"]
    with running(elf, *options, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        expect(lambda: process.stdout.read(1), b"?")
        time.sleep(1)
        process.stdin.write(b"q")
        process.stdin.flush()
        out, _ = process.communicate(timeout=60)
    found = re.search(r"^run \(core cycles\) +([\d,]+)$", out.decode(), re.MULTILINE)
    assert found is not None and 500_000 < int(found[1].replace(",", "")) < 20_000_000
