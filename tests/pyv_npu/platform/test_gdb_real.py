"""The real GDB on the real command line."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from external_tools import GDB, needs

from pyv_npu.boot import find_program
from toolchain import gnu
from toolchain.errors import ToolchainError

PROGRAM = "submit_latency"
pytestmark = needs(GDB)


@contextmanager
def simulator(
    *options: str, program: str = PROGRAM, address: str = "0"
) -> Iterator[tuple["subprocess.Popen[str]", int | str]]:
    """A run that waits for GDB, and its port or socket."""
    command = [sys.executable, "-m", "pyv_npu", "run", program, "--gdb", address, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(r"pyv-npu: waiting for GDB: target remote (:\d+|/.*)\n", line)
        assert found is not None, line + process.stderr.read()
        yield process, int(found[1][1:]) if found[1][0] == ":" else found[1]
    finally:
        process.kill()
        process.communicate()


def gdb(port: int | str, script: str, elf: Path | None = None, check: bool = True) -> str:
    """What GDB prints for the lines of a script, after it has connected."""
    name = f":{port}" if isinstance(port, int) else port
    lines = ["set pagination off", "set confirm off", f"target remote {name}", *script.strip().splitlines()]
    command = [GDB, "-nx", "-batch", *(part for line in lines for part in ("-ex", line.strip()))]
    if elf is None:
        elf = find_program(PROGRAM)
    done = subprocess.run([*command, str(elf)], capture_output=True, text=True, timeout=120, errors="replace")
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout + done.stderr


def values(text: str) -> list[str]:
    """The values of `print` commands."""
    return re.findall(r"^\$\d+ = (.*)$", text, re.MULTILINE)


def result(process: "subprocess.Popen[str]") -> dict[str, object]:
    out, _ = process.communicate(timeout=60)
    value: dict[str, object] = json.loads(out)
    return value


def plain(*options: str, program: str = PROGRAM) -> dict[str, object]:
    command = [sys.executable, "-m", "pyv_npu", "run", program, "--json", *options]
    value: dict[str, object] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return value


ARGS = ("--arg", "n=3", "--arg", "tile=16")


def test_a_session_from_start_to_exit_changes_nothing() -> None:
    script = """
        info registers pc
        break main
        continue
        stepi
        stepi
        print $instret
        print/x $npu_id_version
        print $npu_queue_limit
        info registers mstatus priv
        x/2i $pc
        print/x *(unsigned int *)0x4000003c
        x/4xb 0x80000000
        monitor npu regs
        monitor npu queue
        monitor npu latency
        monitor help
        backtrace
        info breakpoints
        watch *(int *)&completions
        continue
        delete
        break npu_drain
        continue
        info registers npu
        info registers
        delete
        continue
    """
    with simulator("--json", *ARGS) as (process, port):
        text = gdb(port, script)
        assert values(text)[1:4] == ["0x4e500001", "16", "0x4e500001"]
        assert "in main ()" in text
        assert "CTRL           0x00000000  ENABLE=0" in text
        assert "ring at 0x0: 0 of 1024 entries" in text
        assert "nothing was submitted yet" in text
        assert "Breakpoint 1, " in text and "breakpoint already hit 1 time" in text
        assert re.search(r"Hardware watchpoint 2: .*\n\nOld value = 0\nNew value = [1-9]\d*\n", text)
        assert re.search(r"npu_drain \(\) at lib/npu_\w+\.c:\d+", text)
        assert "[Inferior 1 (Remote target) exited normally]" in text
        debugged, free = result(process), plain(*ARGS)
        assert process.returncode == 0
    del debugged["host"], free["host"]
    assert debugged == free


def test_registers_of_the_standard_devices_are_read_without_an_effect() -> None:
    """In the handler of the PLIC, before its claim: what is pending stays so, however often GDB looks."""
    looks = """
        x/1xb 0x10000005
        x/8xb 0x10000000
        x/2xw 0x0200bff8
        x/2xw 0x02004000
        x/1xw 0x02000000
        x/1xw 0x0c00002c
        x/1xw 0x0c001000
        x/1xw 0x0c002000
        x/2xw 0x0c200000
    """
    program, given = "irq_completion", ("--arg", "n=4", "--set", "platform.irq=plic")
    script = f"tbreak handle_plic\ncontinue\n{looks}{looks}print $npu_irq_status\ndelete\ncontinue"
    with simulator("--json", *given, program=program) as (process, port):
        text = gdb(port, script, find_program(program))
        shown = re.findall(r"^(0x[0-9a-f]+)(?: <.*>)?:\t(.*)$", text, re.MULTILINE)
        first, second = shown[: len(shown) // 2], shown[len(shown) // 2 :]
        assert first == second and [address for address, _ in first] == [
            "0x10000005", "0x10000000", "0x200bff8", "0x2004000", "0x2000000",
            "0xc00002c", "0xc001000", "0xc002000", "0xc200000",
        ]  # fmt: skip
        by_address = dict(first)
        assert by_address["0x10000005"] == "0x60"
        assert by_address["0x10000000"].split("\t")[5] == "0x60"
        assert by_address["0x200bff8"].split("\t")[1] == "0x00000000"
        assert by_address["0x2004000"] == "0xffffffff\t0xffffffff"
        assert by_address["0x2000000"] == "0x00000000"
        assert int(by_address["0xc00002c"], 16) > 0
        assert by_address["0xc001000"] == by_address["0xc002000"] == "0x00000800"
        assert by_address["0xc200000"] == "0x00000000\t0x0000000b", "a claim would take source 11"
        debugged, free = result(process), plain(*given, program=program)
        assert process.returncode == 0
    del debugged["host"], free["host"]
    assert debugged == free


def test_exit_codes_arrive() -> None:
    with simulator("--arg", "n=0", program="irq_completion") as (process, port):
        text = gdb(port, "continue\nprint $_exitcode", find_program("irq_completion"))
        assert values(text) == ["2"]
        assert "exited with code 02]" in text
        process.communicate(timeout=60)
        assert process.returncode == 2


def test_registers_and_memory_are_written() -> None:
    script = """
        break main
        continue
        set var $a0 = 0x1234
        set var $mscratch = 0xabcd
        set var *(int *)&completions = 77
        print/x $a0
        print/x $mscratch
        print *(int *)&completions
        set var $npu_ctrl = 1
        print $npu_ctrl
        set var *(int *)0x40000028 = 1
        jump *_start
    """
    with simulator(*ARGS) as (process, port):
        text = gdb(port, script, check=False)
        assert values(text) == ["0x1234", "0xabcd", "77", "0"]
        assert 'Could not write register "npu_ctrl"' in text
        assert "Cannot access memory at address 0x40000028" in text
        assert text.count("Breakpoint 1, ") == 2
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_watchpoints_on_registers_of_the_npu() -> None:
    script = """
        awatch *(unsigned int *)0x40000020
        continue
        print $pc
        x/i $pc - 4
        delete
        rwatch *(unsigned int *)0x40000030
        continue
        x/i $pc - 4
        kill
    """
    with simulator("--mode", "loose", *ARGS) as (process, port):
        text = gdb(port, script)
        assert "Hardware access (read/write) watchpoint 1: *(unsigned int *)0x40000020\n\nValue = 0\n" in text
        assert re.search(r"<npu_submit_loose\+\d+>:\tsw\t\w+,32\(", text)
        assert re.search(r"Hardware read watchpoint 2: .*\n\nValue = \d+\n", text)
        assert re.search(r":\tlw\t\w+,48\(", text)
        _, error = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "killed by the debugger" in error


def test_going_back() -> None:
    script = """
        break npu_submit_tight
        continue
        continue
        continue
        print $mcycle
        print $instret
        reverse-continue
        print $instret
        delete
        reverse-stepi
        print $instret
        stepi
        stepi
        print $instret
        watch *(int *)&completions
        continue
        print *(int *)&completions
        print $pc
        reverse-continue
        print *(int *)&completions
        delete
        reverse-continue
        print $pc
        break npu_submit_tight
        continue
        continue
        continue
        print $mcycle
        delete
        continue
    """
    with simulator("--json", *ARGS) as (process, port):
        text = gdb(port, script)
        cycle, third, second, before, after, new, _, old, start, again = values(text)
        assert cycle == again
        assert int(third) > int(second) == int(before) + 1 == int(after) - 1
        assert int(new) != int(old) == 0
        assert "_start" in start
        assert "No more reverse-execution history." in text
        debugged, free = result(process), plain(*ARGS)
    del debugged["host"], free["host"]
    assert debugged == {**free, "uart": debugged["uart"]}
    assert debugged["uart"] == free["uart"]


def test_a_deadlock_can_be_looked_at() -> None:
    script = "tbreak main\ncontinue\nset var *(int *)$pc = 0x10500073\ncontinue\nx/i $pc\nprint $mie"
    with simulator(*ARGS) as (process, port):
        text = gdb(port, script)
        assert "deadlock at pc" in text
        assert "Program received signal SIGABRT" in text
        assert "wfi" in text
        _, error = process.communicate(timeout=60)  # GDB has detached: the program runs into it by itself
        assert process.returncode == 76
        assert "deadlock at pc" in error


def test_ctrl_c_in_gdb_stops_the_program_and_detach_lets_it_go() -> None:
    with simulator("--json", *ARGS) as (process, port):
        spin = ["tbreak main", "continue", "set $old = *(int *)$pc", "set var *(int *)$pc = 0x6f", "echo spins\\n"]
        spin += ["continue"]
        script = [f"target remote :{port}", *spin, "print $pc", "print $cycle", "set var *(int *)$pc = $old", "detach"]
        command = [
            GDB,
            "-nx",
            "-batch",
            *(part for line in script for part in ("-ex", line)),
            str(find_program(PROGRAM)),
        ]
        debugger = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert debugger.stdout is not None
        assert "spins\n" in debugger.stdout
        with pytest.raises(subprocess.TimeoutExpired):
            debugger.communicate(timeout=2)
        debugger.send_signal(signal.SIGINT)
        text, _ = debugger.communicate(timeout=60)
        assert "Program received signal SIGINT, Interrupt." in text
        assert len(values(text)) == 2
        assert "detached" in text
        assert result(process)["exit_code"] == 0
        assert process.returncode == 0


@pytest.mark.parametrize("connected", [False, True])
def test_ctrl_c_in_the_simulator_ends_it(connected: bool, tmp_path: Path) -> None:
    with simulator("--report", str(tmp_path)) as (process, port):
        if connected:
            gdb(port, "stepi 5\ndisconnect")
        process.send_signal(signal.SIGINT)
        _out, error = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in error
        assert json.loads((tmp_path / "result.json").read_text())["instret"] == (5 if connected else 0)


def test_source_lines_and_variables(tmp_path: Path) -> None:
    try:
        elf = gnu.build(tmp_path, [PROGRAM])[0]
    except ToolchainError as error:
        pytest.skip(str(error))
    script = """
        break main
        continue
        next
        next
        tbreak npu_drain
        continue
        info args
        finish
        print npu
        watch completions
        continue
        backtrace
        detach
    """
    with simulator(*ARGS, program=str(elf)) as (process, port):
        text = gdb(port, script, elf)
        assert re.search(r"main \(\) at apps/submit_latency\.c:\d+", text)
        assert re.search(r"npu_drain \(\) at lib/npu_driver\.c:\d+", text)
        assert re.search(r"\$2 = \{base = 1073741824, .*submit = 0x\w+ <npu_submit_tight>", text)
        assert re.search(r"Hardware watchpoint 3: completions\n\nOld value = 0\nNew value = [1-9]", text)
        assert re.search(r"#0 .* on_completion \(.*\n(#\d+ .*\n)*#\d+ .* trap_interrupt_entry \(\)", text)
        process.communicate(timeout=60)
        assert process.returncode == 0


TICKS = """
#define REG(address) (*(volatile unsigned *)(address))
volatile unsigned ticks, sum;
__attribute__((interrupt, aligned(4))) static void on_tick(void)
{
    ticks++;
    REG(0x02004000) = REG(0x0200bff8) + 1;
}
int main(void)
{
    REG(0x02004004) = 0;
    REG(0x02004000) = 0;
    __asm__ volatile("csrw mtvec, %0\\n csrs mie, %1\\n csrsi mstatus, 8" ::"r"(on_tick), "r"(1 << 7));
    for (unsigned i = 0; i < 2000; i++) sum += i;
    sum += ticks;
    return 0;
}
"""


def test_next_stays_in_the_function_under_a_fast_timer(tmp_path: Path) -> None:
    """The loop of one line executes some thousand instructions, and the timer interrupts it each 120 cycles."""
    (tmp_path / "ticks.c").write_text(TICKS)
    try:
        elf = gnu.build_program(tmp_path / "ticks.elf", [tmp_path / "ticks.c"])
    except ToolchainError as error:
        pytest.skip(str(error))
    script = """
        break ticks.c:14
        continue
        next
        print ticks > 50
        monitor step-interrupts on
        tbreak ticks.c:16
        step
        step
        detach
    """
    with simulator(program=str(elf)) as (process, port):
        text = gdb(port, script, elf)
        assert re.search(r"^14\t.*\n(?:.*\n)*?15\t    sum \+= ticks;\n\$1 = 1\n", text, re.MULTILINE), text
        assert "step-interrupts is on" in text
        process.communicate(timeout=60)
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--gdb", "x"], 64, "--gdb x: must be a port, 0..65535, or unix:PATH"),
        (["--gdb", "unix:"], 64, "--gdb unix:: must be a port, 0..65535, or unix:PATH"),
        (["--gdb-files", "."], 64, "--gdb-files .: is about GDB; add --gdb PORT"),
        (["--gdb", "0", "--gdb-files", "nowhere"], 64, "--gdb-files nowhere: is no folder; make it first"),
        (["--gdb", "65536"], 64, "--gdb 65536: must be a port, 0..65535, or unix:PATH"),
    ],
)
def test_wrong_ports(options: list[str], code: int, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyv_npu", "run", PROGRAM, *options], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (code, f"pyv-npu: error: {text}\n")


def test_a_socket_that_only_its_user_can_open(tmp_path: Path) -> None:
    path = tmp_path / "gdb"
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(str(path))
    with simulator(address=f"unix:{path}") as (process, where):
        assert where == str(path) and path.stat().st_mode & 0o777 == 0o600
        assert "exited normally" in gdb(where, "continue")
        process.communicate(timeout=60)
        assert process.returncode == 0 and not path.exists()
    path.write_text("mine")
    command = [sys.executable, "-m", "pyv_npu", "run", PROGRAM, "--gdb", f"unix:{path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 65 and done.stderr == f"pyv-npu: error: {path}: Address already in use; name a new file\n"
    assert path.read_text() == "mine"


def test_files_are_written_in_the_given_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "outside")
    names = (str(tmp_path / "outside"), "../outside", "link", "..", "good")
    script = "\n".join(f"monitor save {name}" for name in names)
    with simulator() as (_, port):
        assert "no folder for files was given; start the run with --gdb-files DIR" in gdb(port, script)
    with simulator("--gdb-files", str(folder)) as (_, port):
        text = gdb(port, script)
    assert sorted(path.name for path in folder.iterdir()) == ["good", "link"] and not (tmp_path / "outside").exists()
    assert f"cycle 0 is saved in {folder / 'good'}" in text
    assert f"../outside: must be the name of a file in {folder}, without a folder" in text
    assert f"{folder / 'link'}: is no file that can be replaced; choose another name" in text


def test_a_web_page_controls_nothing() -> None:
    """What a browser posts to the port, for a page that knows the protocol."""
    body = "+$k#6b"
    request = f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    with simulator() as (_, port):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(request.encode())
            with suppress(ConnectionError):
                assert connection.recv(1) == b""
        assert "exited normally" in gdb(port, "continue")
