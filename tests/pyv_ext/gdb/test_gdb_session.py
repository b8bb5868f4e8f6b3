"""The commands of the remote serial protocol, on a hart with memory and a device."""

import socket
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest
from hart_rig import DATA, HANDLER, INTERRUPTED, PORT, RAM, Rig, Trace
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rsp_client import Client, Served, never, packet, session
from shares import draws

from pyv_ext.bus.clock import Clock
from pyv_ext.devices.program_exit import Finisher
from pyv_ext.engines.core import Stop, StopReason
from pyv_ext.errors import PyvExtError
from pyv_ext.gdb.debugger import Debugger, GdbSignal
from pyv_ext.gdb.points import DebugPoint, PointKind
from pyv_ext.gdb.registers import RegisterFeature, RegisterView, hart_features, target_xml
from pyv_ext.gdb.session import Monitor, SessionEnd, serve
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Isa
from pyv_ext.timing import CoreTiming

FINISHER = 0x0010_0000
LOOP = """
    li x1,0x80004000
    li x2,0x40000000
    addi x3,x0,5
loop:
    sw x3,0(x1)
    lw x4,0(x1)
    sw x4,4(x2)
    lw x5,16(x2)
    addi x3,x3,-1
    bne x3,x0,loop
    li x6,0x00033333
    li x7,0x00100000
    sw x6,0(x7)
    sw x6,0(x7)
"""
START = RAM + 5 * 4
"""The label `loop`."""
EXTRA = RegisterFeature(
    "org.pyv-npu.test", [RegisterView("answer", lambda: 42), RegisterView("wide", lambda: 1 << 63, bits=64)]
)


class Machine:
    """A rig with a finisher, and the registers that a Debugger of it has."""

    def __init__(self, program: str = LOOP) -> None:
        self.rig = Rig(program)
        self.rig.bus.add_device(
            FINISHER,
            Finisher(lambda code: self.rig.engine.stop(Stop(StopReason.EXIT, code)), lambda: None),
        )
        self.debugger = Debugger(self.rig.engine, features=[EXTRA])
        self.numbers = {register.name: number for number, register in enumerate(self.debugger.registers)}


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def client(machine: Machine) -> Iterator[Client]:
    with session(machine.debugger, [Monitor("say hello", "says hello", lambda given: "hello\nworld")]) as (one, _):
        yield one


def le(value: int, size: int = 4) -> str:
    return value.to_bytes(size, "little").hex()


def stop(reply: str) -> tuple[int, dict[str, str]]:
    """(signal, fields) of a T reply."""
    assert reply[0] == "T"
    fields = dict(field.split(":") for field in reply[3:].split(";") if field)
    return int(reply[1:3], 16), fields


# -- registers ---------------------------------------------------------------------------------------------------


def test_the_description_numbers_every_register(client: Client, machine: Machine) -> None:
    text, offset = "", 0
    while True:
        part = client.ask(f"qXfer:features:read:target.xml:{offset:x},400")
        text, offset = text + part[1:], offset + len(part) - 1
        if part[0] == "l":
            break
        assert len(part) == 0x401
    root = ET.fromstring(text)
    assert root.findtext("architecture") == "riscv:rv32"
    features = {feature.get("name"): feature.findall("reg") for feature in root.findall("feature")}
    assert list(features) == [
        "org.gnu.gdb.riscv.cpu",
        "org.gnu.gdb.riscv.csr",
        "org.gnu.gdb.riscv.virtual",
        "org.pyv-npu.test",
    ]
    registers = [register for rows in features.values() for register in rows]
    assert [int(register.get("regnum") or -1) for register in registers] == list(range(len(registers)))
    assert [register.get("name") for register in registers] == [r.name for r in machine.debugger.registers]
    assert [register.get("name") for register in features["org.gnu.gdb.riscv.cpu"]][::16] == ["zero", "a6", "pc"]
    assert {"mstatus", "mepc", "pmpaddr15", "cycleh", "tdata3"} <= {
        register.get("name") for register in features["org.gnu.gdb.riscv.csr"]
    }
    assert client.ask("qXfer:features:read:other.xml:0,400") == "E00"
    assert client.ask(f"qXfer:features:read:target.xml:{offset:x},400") == "l"


def test_registers_of_64_bits_are_described() -> None:
    hart = Hart(Isa("rv64imacu_zicsr"), CoreTiming(), Clock().records)
    hart.x[5] = hart.csrs.mepc = (1 << 64) - 2
    features = hart_features(hart)
    root = ET.fromstring(target_xml(features, hart.isa.xlen))
    assert root.findtext("architecture") == "riscv:rv64"
    bits = {register.get("name"): register.get("bitsize") for register in root.iter("reg")}
    assert bits["t0"] == bits["pc"] == bits["mepc"] == bits["mcycle"] == "64"
    assert not {"mcycleh", "mstatush", "pmpcfg1"} & bits.keys()
    values = {register.name: register.read() for feature in features for register in feature.registers}
    assert values["t0"] == values["mepc"] == (1 << 64) - 2


def test_all_registers_at_once_are_the_integer_ones_and_pc(client: Client, machine: Machine) -> None:
    for number in range(1, 32):
        machine.rig.hart.x[number] = number * 0x0101_0101
    assert client.ask("g") == "".join(le(number * 0x0101_0101) for number in range(32)) + le(RAM)
    assert client.ask("G" + le(7) + le(0xFFFF_FFFF) * 31 + le(RAM + 0x41)) == "OK"
    assert machine.rig.x == [0] + [0xFFFF_FFFF] * 31
    assert machine.rig.hart.pc == RAM + 0x40
    assert client.ask("G" + le(0) + le(1)) == "OK"
    assert machine.rig.x[1:3] == [1, 0xFFFF_FFFF]


def test_single_registers(client: Client, machine: Machine) -> None:
    hart, numbers = machine.rig.hart, machine.numbers
    assert client.ask(f"P{numbers['mscratch']:x}=" + le(0xCAFE)) == "OK"
    assert hart.csrs.mscratch == 0xCAFE == client.register(numbers["mscratch"])
    assert client.ask("P0=" + le(5)) == "OK"
    assert client.register(0) == 0
    assert client.register(numbers["priv"]) == 3
    assert client.register(numbers["answer"]) == 42
    assert client.ask(f"p{numbers['wide']:x}") == le(1 << 63, 8)
    assert client.ask(f"P{numbers['answer']:x}=" + le(1)) == (
        "E.answer cannot be written by the debugger: let the program do it"
    )
    assert client.ask(f"P{numbers['cycle']:x}=" + le(1))[:2] == "E."
    assert client.ask("p7fff") == client.ask("p-1") == client.ask("pxyz") == "E01"


# -- memory ------------------------------------------------------------------------------------------------------


def test_memory_is_read_and_written(client: Client, machine: Machine) -> None:
    data = bytes(range(256))
    assert client.ask(f"M{DATA:x},100:" + data.hex()) == "OK"
    assert client.memory(DATA, 256) == data
    escaped = bytes(byte for one in data for byte in ((0x7D, one ^ 0x20) if one in b"#$}*" else (one,)))
    assert client.ask(b"X%x,100:" % (DATA + 0x1000) + escaped) == "OK"
    assert machine.rig.bus.peek(DATA + 0x1000, 256) == data
    assert client.ask(b"X%x,0:" % DATA) == "OK"
    assert client.ask(f"M{DATA:x},2:00") == client.ask("m1,") == client.ask("m") == "E01"
    assert client.ask(f"m{DATA:x},0") == ""


def test_what_is_not_memory(client: Client, machine: Machine) -> None:
    end = RAM + machine.rig.ram.size
    assert client.memory(end - 8, 64) == bytes(8)
    assert client.ask(f"m{end:x},4") == "E0e"
    assert client.ask(f"M{end - 2:x},4:00000000").startswith("E.no memory at")
    assert client.ask(f"M{PORT:x},4:00000000").startswith("E.no memory at")
    assert client.ask(f"m{PORT:x},4") == "E0e"
    assert client.ask("mffffffff,8") == client.ask("m123456789abcdef,8") == "E0e"
    assert machine.rig.port.log == []


def test_devices_that_can_be_peeked_are_shown_word_by_word(client: Client, machine: Machine) -> None:
    machine.rig.port.peek = lambda offset, size, now: 0x0302_0100 + offset * 0x0101_0101  # type: ignore[attr-defined]
    assert client.memory(PORT, 6) == bytes([0, 1, 2, 3, 4, 5])
    assert client.memory(PORT + 3, 3) == bytes([3, 4, 5])
    assert machine.rig.port.log == []


# -- running -----------------------------------------------------------------------------------------------------


def test_stepping_and_breakpoints(client: Client, machine: Machine) -> None:
    pc = machine.numbers["pc"]
    assert stop(client.ask("?"))[0] == 5
    signal, fields = stop(client.ask("s"))
    assert (signal, fields[f"{pc:x}"]) == (5, le(RAM + 4))
    assert client.ask(f"Z0,{START:x},4") == client.ask(f"Z1,{START + 4:x},4") == "OK"
    code = client.memory(RAM, 64)
    assert stop(client.ask("c"))[1].items() >= {"swbreak": "", f"{pc:x}": le(START)}.items()
    assert stop(client.ask("c"))[1].items() >= {"hwbreak": "", f"{pc:x}": le(START + 4)}.items()
    assert client.memory(RAM, 64) == code
    assert stop(client.ask("vCont;s:1;c"))[1][f"{pc:x}"] == le(START + 8)
    assert client.ask(f"z1,{START + 4:x},4") == "OK"
    assert client.register(3) == 5
    for count in (4, 3, 2, 1):
        assert "swbreak" in stop(client.ask("vCont;c"))[1]
        assert client.register(3) == count
    assert client.ask("C05") == "W03"


def test_an_address_to_go_on_from(client: Client, machine: Machine) -> None:
    assert client.ask(f"s{RAM + 8:x}")[:3] == "T05"
    assert machine.rig.hart.pc == RAM + 12
    assert client.ask(f"S05;{RAM:x}")[:3] == "T05"
    assert machine.rig.hart.pc == RAM + 4


def test_stepping_a_range(client: Client, machine: Machine) -> None:
    client.ask(f"Z0,{START:x},4")
    client.ask("c")
    assert client.ask(f"vCont;r{START:x},{START + 24:x}:1")[:3] == "T05"
    assert machine.rig.hart.pc == START
    assert machine.rig.hart.x[3] == 4
    client.ask(f"z0,{START:x},4")
    client.ask(f"vCont;r{START:x},{START + 24:x}:1")
    assert machine.rig.hart.pc == START + 24


COUNT = (
    INTERRUPTED
    + f"""
    li x2,{DATA + 0x800}
    li x3,{HANDLER}
    addi x9,x0,20
count:
    jalr x1,44(x3)
    addi x9,x9,-1
    bne x9,x0,count
    wfi
    addi x9,x9,1
end:
    jal x0,end
"""
)
"""Counts and calls a function in an endless loop, which its handler calls, too."""
COUNT_HANDLER = """
    addi x2,x2,-8
    sw x8,0(x2)
    sw x1,4(x2)
    sw x0,0(x12)
    addi x7,x7,1
    jalr x1,44(x3)
    lw x8,0(x2)
    lw x1,4(x2)
    addi x2,x2,8
    addi x0,x0,0
    mret
    add x8,x8,x8
    addi x8,x8,1
    jalr x0,0(x1)
"""


def counting(every: int) -> Rig:
    return Rig(COUNT, handler=COUNT_HANDLER, lines=[(cycle, 0x80) for cycle in range(30, 600, every)])


@pytest.mark.parametrize("every", [17, 20, 33])
def test_a_step_leaves_the_handlers_of_interrupts_out(every: int) -> None:
    free, rig = counting(every), counting(every)
    trace = Trace()
    free.engine.add_tracer(trace)
    free.engine.run(1000)
    taken = [end for *_, end, interrupt in trace.traps if interrupt]
    returned = [end for *_, end, name in trace.retired if name == "mret"]
    assert len(taken) == len(returned) == len(range(30, 600, every))
    spans = list(zip(taken, returned, strict=True))
    program = [pc for pc, start, *_ in trace.retired if not any(begin <= start < end for begin, end in spans)]
    debugger, pcs = Debugger(rig.engine), []
    while rig.hart.cycle < 450:
        pcs.append(rig.hart.pc)
        assert debugger.step(never).signal == GdbSignal.TRAP
    assert pcs == program[: len(pcs)]
    other = counting(every)
    other.engine.run(rig.hart.cycle)
    other.bus.clock.advance(rig.hart.cycle)  # what is due now, as the debugger shows it
    assert rig.state() == other.state()


def test_a_step_enters_handlers_where_that_is_asked_for() -> None:
    rig = counting(20)
    debugger = Debugger(rig.engine)
    debugger.step_interrupts = True
    pcs = set()
    while rig.hart.cycle < 100:
        debugger.step(never)
        pcs.add(rig.hart.pc)
    assert HANDLER in pcs


def test_a_breakpoint_in_a_handler_stops_a_step() -> None:
    rig = counting(20)
    debugger = Debugger(rig.engine)
    debugger.points.insert(DebugPoint(PointKind.HARDWARE, HANDLER + 16, 4))
    while (halt := debugger.step(never)).hit is None:
        assert rig.hart.pc < HANDLER or rig.hart.pc >= HANDLER + 44
    assert rig.hart.pc == HANDLER + 16 == halt.hit.address
    assert debugger.step(never).hit is None  # in the handler, from here on
    assert rig.hart.pc == HANDLER + 20


@pytest.mark.parametrize(
    ("kind", "name", "address", "offset", "pcs"),
    [
        (2, "watch", DATA, 1, [START]),
        (3, "rwatch", DATA, 1, [START + 4]),
        (4, "awatch", DATA, 1, [START, START + 4]),
        (2, "watch", PORT + 4, 1, [START + 8]),
        (3, "rwatch", PORT + 16, -1, [START + 12]),
        (4, "awatch", PORT + 16, 1, [START + 12]),
    ],
)
def test_watchpoints_stop_before_the_access(
    client: Client, machine: Machine, kind: int, name: str, address: int, offset: int, pcs: list[int]
) -> None:
    """GDB expects that of RISC-V: it steps over the access itself."""
    assert client.ask(f"Z{kind},{address + offset:x},2") == "OK"
    for turn, pc in enumerate(pcs * 2):
        signal, fields = stop(client.ask("c"))
        assert (signal, fields[name]) == (5, f"{max(address + offset, address):x}")
        assert machine.rig.hart.pc == pc
        done = [call for call in machine.rig.port.log if call[1] == address - PORT]
        assert len(done) == (turn if address >= PORT and address < DATA else 0)
    assert client.ask(f"z{kind},{address + offset:x},2") == "OK"
    assert client.ask("c") == "W03"


def test_points_that_make_no_sense(client: Client) -> None:
    assert client.ask("Z5,0,0") == ""
    for body in ("Z0", "Z2,0", "Z2,0,0", "Z2,ffffffff,2", "Z2,-4,4", "Z2,0,fffff", "z1,zz,4"):
        assert client.ask(body) == "E01"
    assert client.ask("Z2,fffffffc,4") == client.ask("z2,fffffffc,4") == client.ask("z2,fffffffc,4") == "OK"


def test_ctrl_c_stops_a_running_program() -> None:
    machine = Machine("loop:; jal x0,loop")
    with session(machine.debugger) as (client, _):
        client.send("c")
        time.sleep(0.3)
        client.connection.sendall(b"\x03")
        assert stop(client.answer())[0] == 2
        assert machine.rig.hart.pc == RAM
        before = machine.rig.hart.cycle
        client.send("c")
        client.connection.sendall(b"\x03")
        assert stop(client.answer())[0] == 2
        assert machine.rig.hart.cycle > before


def test_ctrl_c_stops_a_step_that_waits() -> None:
    """A WFI that no interrupt ends, while a device keeps having events."""
    machine = Machine("wfi")
    machine.rig.lines.next_event = lambda: machine.rig.clock.now + 1000  # type: ignore[method-assign]
    machine.rig.clock.changed(0)
    with session(machine.debugger) as (client, _):
        client.send("s")
        time.sleep(0.3)
        client.connection.sendall(b"\x03")
        assert stop(client.answer())[0] == 2
        assert machine.rig.hart.waiting is not None


@pytest.mark.parametrize(
    ("program", "signal", "text"),
    [
        ("wfi", 6, "deadlock at pc 0x80000000: no event is left\n"),
        ("li x1,0x80000400; csrrw x0,mtvec,x0; ecall", 11, "trap loop at pc 0x00000000: cause 1"),
    ],
)
def test_ends_that_can_be_looked_into(program: str, signal: int, text: str) -> None:
    machine = Machine(program)
    with session(machine.debugger) as (client, served):
        for _ in range(2):
            client.console = ""
            assert stop(client.ask("c"))[0] == signal
            assert client.console.startswith(text)
        assert client.ask("D") == "OK"
    assert served.end is SessionEnd.DETACHED


def test_the_cycle_limit_stops() -> None:
    machine = Machine("loop:; jal x0,loop")
    machine.debugger = Debugger(machine.rig.engine, limit=1000)
    with session(machine.debugger) as (client, _):
        assert stop(client.ask("c"))[0] == 24
        assert client.console == "cycle limit 1000 reached at pc 0x80000000\n"
        assert stop(client.ask("s"))[0] == 24
    assert machine.rig.hart.cycle == 1000


# -- the session ---------------------------------------------------------------------------------------------------


def test_queries(client: Client) -> None:
    supported = client.ask("qSupported:multiprocess+;swbreak+;hwbreak+").split(";")
    assert supported == [
        "PacketSize=4000", "QStartNoAckMode+", "qXfer:features:read+", "vContSupported+", "swbreak+", "hwbreak+",
    ]  # fmt: skip
    assert client.ask("vCont?") == "vCont;c;C;s;S;r"
    assert [client.ask(body) for body in ("qAttached", "qC", "qfThreadInfo", "qsThreadInfo", "Hg0", "T1")] == [
        "1", "QC1", "m1", "l", "OK", "OK",
    ]  # fmt: skip
    unsupported = ("vMustReplyEmpty", "qTStatus", "QNonStop:1", "!", "R", "bx", "vFile:open:", "", "\xff", "vCont;x")
    assert [client.ask(body) for body in unsupported] == [""] * len(unsupported)
    assert client.ask("bs") == client.ask("bc") == "E.no way back: this machine keeps no past"


def test_monitor(client: Client) -> None:
    def monitor(text: str) -> str:
        client.console = ""
        assert client.ask("qRcmd," + text.encode().hex()) == "OK"
        return client.console

    assert monitor("  say   hello ") == "hello\nworld\n"
    usage = monitor("help")
    assert [line.split("  ")[0] for line in usage.splitlines()] == ["say hello", "step-interrupts [off|on]"]
    assert monitor("") == usage
    assert monitor("grüß") == f"grüß: unknown command\n{usage}"
    assert monitor("step-interrupts") == monitor("step-interrupts off") == "step-interrupts is off\n"
    assert monitor("step-interrupts on") == monitor("step-interrupts") == "step-interrupts is on\n"
    assert monitor("step-interrupts maybe") == "step-interrupts maybe: must be off or on\n"
    assert client.ask("qRcmd,6") == "E01"


def test_long_answers_come_in_pieces() -> None:
    text = "x" * 40_000 + "\n"
    with session(Machine().debugger, [Monitor("long", "", lambda given: text)]) as (client, _):
        assert client.ask("qRcmd," + b"long".hex()) == "OK"
        assert client.console == text


def test_what_follows_a_name_is_given_to_a_command_that_takes_it() -> None:
    echo = Monitor("echo it", "echoes", lambda given: f"[{given}]", "TEXT")
    with session(Machine().debugger, [echo]) as (client, _):
        answers = []
        for line in ("help", "echo it", "echo it a  b", "echo its"):
            client.console = ""
            assert client.ask("qRcmd," + line.encode().hex()) == "OK"
            answers.append(client.console)
    usage = answers[0]
    assert usage.startswith("echo it TEXT  ")
    assert answers[1:] == [f"echo it: unknown command\n{usage}", "[a b]\n", f"echo its: unknown command\n{usage}"]


def test_an_error_of_a_command_is_shown() -> None:
    def fail(given: str) -> str:
        raise PyvExtError("not now")

    with session(Machine().debugger, [Monitor("fail", "", fail)]) as (client, _):
        assert client.ask("qRcmd," + b"fail".hex()) == "OK"
        assert client.console == "not now\n"


def test_acknowledgements(client: Client) -> None:
    connection = client.connection
    connection.sendall(b"$g#00")
    assert connection.recv(1) == b"-"
    first = client.ask("m80000000,4")
    connection.sendall(b"-")
    assert client.reply().decode() == first
    assert client.ask("QStartNoAckMode") == "OK"
    client.acknowledge = False
    connection.sendall(b"$g#00-" + packet("m80000000,4"))
    assert connection.recv(1) == b"$"
    client._pending = b"$"
    assert client.reply().decode() == first


@pytest.mark.parametrize(
    ("body", "end"), [("D", SessionEnd.DETACHED), ("k", SessionEnd.KILLED), ("vKill;1", SessionEnd.KILLED)]
)
def test_leaving(body: str, end: SessionEnd) -> None:
    machine = Machine()
    with session(machine.debugger) as (client, served):
        client.ask(f"Z0,{START:x},4")
        client.send(body)
        if body != "k":
            assert client.reply() == b"OK"
    assert served.end is end
    assert machine.rig.engine.run(1 << 20) == Stop(StopReason.EXIT, 3)


def test_a_lost_client_stops_the_run() -> None:
    machine = Machine("loop:; jal x0,loop")
    with session(machine.debugger) as (client, served):
        client.ask(f"Z2,{DATA:x},4")
        client.send("c")
        time.sleep(0.2)
    assert served.end is SessionEnd.LOST
    assert not machine.rig.bus.guards


def test_the_port_takes_one_client_after_the_other() -> None:
    machine = Machine()
    ports: list[int] = []
    stops: list[Stop | None] = []

    def connect(name: str) -> None:
        ports.append(int(name.removeprefix(":")))

    thread = threading.Thread(target=lambda: stops.append(serve(machine.debugger, 0, (), connect)), daemon=True)
    thread.start()
    while not ports:
        time.sleep(0.01)
    with socket.create_connection(("127.0.0.1", ports[0])) as connection:
        assert Client(connection).ask("s")[:3] == "T05"
    with socket.create_connection(("127.0.0.1", ports[0])) as connection:
        client = Client(connection)
        assert client.register(machine.numbers["pc"]) == RAM + 4
        assert client.ask("c") == "W03"
    thread.join(10)
    assert stops == [Stop(StopReason.EXIT, 3)]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ports[0]))


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PyvExtError, match=rf"^port {port}: .*; choose another one, or 0 for any that is free$"):
            serve(Machine().debugger, port)


def test_a_byte_that_no_client_sends_ends_the_session() -> None:
    machine = Machine()
    with session(machine.debugger) as (client, served):
        client.connection.sendall(b"POST / HTTP/1.1\r\n\r\n$s#73")
        assert client.connection.recv(1) == b""
    assert served.end is SessionEnd.LOST and machine.rig.hart.instret == 0


def test_a_client_that_floods_while_the_program_runs_is_given_up() -> None:
    machine = Machine("loop:; jal x0,loop")
    with session(machine.debugger) as (client, served):
        client.send("c")
        with pytest.raises(ConnectionError):
            while True:
                client.connection.sendall(packet("m80000000,4") * 4096)
    assert served.end is SessionEnd.LOST and len(served.session._received) < 10_000


def test_there_is_a_limit_to_breakpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyv_ext.gdb.points.MAX_POINTS", 2)
    with session(Machine().debugger) as (client, _):
        answers = [client.ask(f"Z0,{RAM + 4 * index:x},4") for index in (0, 1, 0, 2)]
    assert answers == ["OK", "OK", "OK", "E.there are 2 breakpoints and watchpoints; delete some"]


# -- any client at all -----------------------------------------------------------------------------------------------

HEX = st.text("0123456789abcdefABCDEF,;:=-xg", max_size=24)
BODY = st.one_of(
    st.builds(lambda letter, rest: letter + rest, st.sampled_from(list("?bcCDgGHkmMpPqQsSTvXZz!RaA")), HEX),
    st.builds(
        lambda head, rest: head + rest,
        st.sampled_from(
            ["vCont;", "vCont;r", "Z0,8000", "Z2,8000", "Z4,4000", "z2,8000", "qRcmd,", "qSupported:", "vKill",
             "qXfer:features:read:target.xml:", "P20=", "P21=", f"m{RAM:x},", f"M{DATA:x},4:", f"X{DATA:x},2:"]
        ),
        HEX,
    ),
    st.text(max_size=12),
)  # fmt: skip
CHUNK = st.one_of(BODY.map(lambda body: packet(body.encode("utf-8", "replace"))), st.binary(max_size=16))


@settings(max_examples=draws(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(chunks=st.lists(CHUNK, max_size=14))
@example(chunks=[packet("Z2,80004000,4"), packet("c"), packet("c"), b"\x03\x03"])
@example(chunks=[packet("P20=ffffffff"), packet("s"), packet("c")])
def test_no_client_can_break_the_machine(chunks: list[bytes]) -> None:
    """Whatever it sends and then goes: the session ends, the debugger is out of the machine, which can go on."""
    machine = Machine()
    with session(machine.debugger) as (client, served):
        for chunk in chunks:
            try:
                client.connection.sendall(chunk)
            except ConnectionError:
                break
        client.connection.shutdown(socket.SHUT_WR)
        try:
            while client.connection.recv(1 << 16):
                pass
        except ConnectionError:
            pass
    assert_left_alone(machine, served)


def assert_left_alone(machine: Machine, served: Served) -> None:
    assert served.end is not None
    machine.debugger.points.clear()
    assert not machine.rig.bus.guards
    assert not machine.rig.engine.code.hooks
    assert not machine.rig.bus._watched
    assert machine.rig.engine.run(machine.rig.hart.cycle + 10_000) != Stop(StopReason.BREAKPOINT)
