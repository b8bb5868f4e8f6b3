"""An RTOS under the real GDB: its tasks are threads, and whatever is done, the output is complete at the end."""

import re
import signal
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
from external_tools import GCC, GDB, PICOLIBC, needs
from test_gdb_real import gdb, simulator, values

from toolchain.gnu import build_program

BENCH = Path(__file__).resolve().parents[3] / "firmware" / "bench"
ARGS = ("--arg", "rounds=20", "--arg", "tick=20")
TASKS = {"judge": 5, "producer": 1, "filter": 3, "consumer": 2, "periodic": 4, "sleeper": 4, "spinner 0": 1,
         "spinner 1": 1, "IDLE": 0}  # fmt: skip
"""Their priorities."""
OUTPUT = "pipe {pipe}\nbeats 20\nlate 0\ncounter 64\nspun 30661ee\nrtos {pipe}\n"
"""What tests/firmware/test_rtos.py computes; `pipe` depends on the rounds."""

pytestmark = needs(GDB, GCC, PICOLIBC)


@pytest.fixture(scope="module")
def elf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [BENCH / "bench_rtos.c", BENCH / "rtos" / "kernel.c", BENCH / "rtos" / "switch.S"]
    return build_program(tmp_path_factory.mktemp("rtos") / "rtos.elf", sources)


def output(process: "subprocess.Popen[str]") -> str:
    """All that the program has printed, once it has ended well."""
    text, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    return "".join(line for line in text.splitlines(True) if re.fullmatch(r"[a-z]+ [0-9a-f]+\n", line))


def complete(text: str) -> bool:
    found = re.match("pipe ([0-9a-f]+)\n", text)
    return found is not None and text == OUTPUT.format(pipe=found[1])


def numbers(text: str) -> dict[str, int]:
    """The threads that `info threads` shows, by the names of their tasks."""
    return {name: int(number) for number, name in re.findall(r"Thread (\d+) \(([^:)]+): ", text)}


def test_tasks_are_threads_with_stacks_of_their_own(elf: Path) -> None:
    script = """
        info threads
        break consume
        continue
        info threads
        thread apply all -q backtrace 6
        print pxCurrentTCB->pcTaskName
        thread find periodic
        delete
        detach
    """
    with simulator(*ARGS, program=str(elf)) as (process, port):
        text = gdb(port, script, elf)
        before, _, after = text.partition("hit Breakpoint 1, consume")
        assert "Thread 1 (no task runs)" in before and "_start ()" in before
        shown = re.findall(r"Thread \d+ \(([^:)]+): (\w+), priority (\d+)\)", after)
        assert {name: int(priority) for name, _, priority in shown} == TASKS
        states = {name: state for name, state, _ in shown}
        assert states["consumer"] == "running" and list(states.values()).count("running") == 1
        assert states["filter"] == "suspended" and states["periodic"] == "delayed" and states["IDLE"] == "ready"
        for function in ("square", "beat"):
            assert re.search(rf"#\d+ .* in {function} \(.*\n#\d+ .* in run \(", after), function
        assert re.search(r"#\d+ .*judging \(", after)
        assert values(text)[0].startswith('"consumer\\000')
        assert f"Thread {numbers(after)['periodic']} has extra info 'periodic: delayed, priority 4'" in after
        assert complete(output(process))


def test_the_frame_of_a_waiting_task_is_where_it_goes_on(elf: Path) -> None:
    """A breakpoint where a thread waits stops that task, with the registers that the frame had shown."""
    first = "break consume\ncontinue\ninfo threads\ndelete\ndisconnect"
    with simulator(*ARGS, program=str(elf)) as (process, port):
        waiting = numbers(gdb(port, first, elf))["filter"]  # one more than GDB counts: the hart was 1
        text = gdb(
            port,
            f"""
            thread {waiting - 1}
            print/x $pc
            print/x $sp
            print/x $s0
            tbreak *$pc thread {waiting - 1}
            continue
            print/x $pc
            print/x $sp
            print/x $s0
            thread
            delete
            continue
            """,
            elf,
        )
        shown = values(text)
        assert shown[:3] == shown[3:] and shown[0] != "0x0"
        assert f"[Current thread is {waiting - 1} (Thread {waiting})]" in text
        assert complete(output(process))


def test_stepped_gone_back_saved_and_gone_on(elf: Path, tmp_path: Path) -> None:
    """`next` follows the task over ticks; going back crosses switches; the snapshot goes on in a new process."""
    snapshot = tmp_path / "rtos.snapshot"
    steps = "\n".join(["next"] * 30)
    script = f"""
        break spin
        continue
        delete
        set $task = pxCurrentTCB
        {steps}
        print pxCurrentTCB == $task
        print $instret
        reverse-stepi
        reverse-stepi
        print $instret
        stepi
        stepi
        print $instret
        break rtos_restore
        reverse-continue
        print $instret
        print pxCurrentTCB
        continue
        continue
        reverse-continue
        print $instret
        print pxCurrentTCB
        monitor save {snapshot.name}
        info threads
        delete
        continue
    """
    with simulator(*ARGS, "--gdb-files", str(tmp_path), program=str(elf)) as (process, port):
        text = gdb(port, script, elf)
        same, here, back, again, switched, task, switched_again, task_again = values(text)
        assert same == "1" and int(here) == int(back) + 2 == int(again)
        assert int(switched) < int(here) <= int(switched_again)
        assert task.startswith("(TCB_t *") and task_again.startswith("(TCB_t *")
        assert re.search(rf"cycle \d+ is saved in {snapshot}\n", text)
        assert "exited normally" in text
        whole = output(process)
        assert complete(whole)
    restored = "info threads\nbreak consume\nprint pxCurrentTCB\ndelete\nreverse-stepi\ncontinue"
    with simulator(*ARGS, "--restore", str(snapshot), program=str(elf)) as (process, port):
        later = gdb(port, restored, elf)
        assert numbers(later).keys() == TASKS.keys()
        assert values(later) == [task_again]
        assert "exited normally" in later
        assert output(process) == whole


def test_ctrl_c_finds_the_task_that_runs(elf: Path) -> None:
    """The consumer waits in a loop of its own; the tasks above it go on until GDB is interrupted."""
    spin = ["tbreak consume", "continue", "set $at = (int *)$pc", "set $old = *$at", "set var *$at = 0x6f"]
    waits = ["print beats", "echo spins\\n", "continue"]
    script = [*spin, *waits, "info threads", "print beats", "set var *$at = $old", "continue"]
    with simulator(*ARGS, program=str(elf)) as (process, port):
        lines = ["set pagination off", "set confirm off", f"target remote :{port}", *script]
        command = [GDB, "-nx", "-batch", *(part for line in lines for part in ("-ex", line)), str(elf)]
        debugger = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert debugger.stdout is not None
        before = "".join(takewhile(lambda line: line != "spins\n", debugger.stdout))
        with pytest.raises(subprocess.TimeoutExpired):
            debugger.communicate(timeout=2)
        debugger.send_signal(signal.SIGINT)
        text, _ = debugger.communicate(timeout=60)
        assert "received signal SIGINT, Interrupt." in text
        assert re.search(r"\* \d+ +Thread \d+ \(consumer: running, priority 2\) ", text)  # it, or the tick
        (first,), (later,) = values(before), values(text)
        assert int(first) < int(later) <= 32  # how far it comes in these seconds is the host's
        assert complete(output(process))


def test_a_description_of_ones_own_and_offsets_as_gdb_knows_them(elf: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        """
        name: mine
        running: pxCurrentTCB
        started: xSchedulerRunning
        lists: {pxReadyTasksLists: waits for its turn}
        list: {size: List_t, first: List_t.xListEnd.pxNext, end: List_t.xListEnd, next: ListItem_t.link.pxNext,
               task: ListItem_t.pvOwner}
        task: {stack: TCB_t.pxTopOfStack, name: TCB_t.pcTaskName}
        frame: {size: 124, pc: 0, ra: 4, s0: 20}
        """
    )
    script = "break spin\ncontinue\ninfo threads\ndelete\ncontinue"
    with simulator(*ARGS, "--rtos", str(file), program=str(elf)) as (process, port):
        text = gdb(port, script, elf)
        assert "(IDLE: waits for its turn)" in text and "spinner" in text and "periodic" not in text
        assert complete(output(process))


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (("--rtos", "x.yaml"), 64, "--rtos x.yaml: is about GDB; add --gdb PORT"),
        (
            ("--gdb", "0", "--rtos", "no.yaml"),
            65,
            "no.yaml: must be a file, or the name of a shipped one: freertos, freertos-10.4, freertos-11.3",
        ),
    ],
)
def test_what_is_refused_on_the_command_line(elf: Path, options: tuple[str, ...], code: int, text: str) -> None:
    command = [sys.executable, "-m", "pyv_npu", "run", str(elf), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (code, f"pyv-npu: error: {text}\n")
