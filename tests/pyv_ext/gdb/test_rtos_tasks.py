"""Tasks from lists in memory, of the forms that RTOSes have, and what the protocol says of them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hart_rig import DATA, Rig
from hypothesis import given, settings
from hypothesis import strategies as st
from rsp_client import Client, session
from shares import draws

from pyv_ext.elf import Program, Symbol
from pyv_ext.errors import PyvExtError
from pyv_ext.gdb.debugger import Debugger
from pyv_ext.gdb.rtos import MAX_TASKS, Lists, Rtos, Task, Tasks

ONE, TWO, THREE = DATA + 0x100, DATA + 0x200, DATA + 0x300
"""Control blocks: stack pointer, name, link."""
STACK = DATA + 0x800
CURRENT, STARTED, READY = DATA, DATA + 4, DATA + 0x10
LINK = 12
FRAME = {"pc": 0, "ra": 4, "a0": 8}

NULL_ENDED = Lists(first=0, next=0, item=LINK)
CIRCLE = Lists(first=0, next=LINK)
SENTINEL = Lists(first=4, next=0, end=0, task=8, size=8)
"""As in FreeRTOS: the end of a list is in the list, and items point to their tasks."""


def program(**sizes: int) -> Program:
    places = {"current": CURRENT, "started": STARTED, "ready": READY}
    symbols = {name: Symbol(name, address, sizes.get(name, 4)) for name, address in places.items()}
    return Program("rtos.elf", DATA, (), symbols, (), ())


def rtos(lists: Lists, started: str | None = None) -> Rtos:
    task = Task(stack=0, name=4, name_size=8)
    return Rtos("mine", "current", {"ready": "ready", "missing": "asleep"}, lists, task, FRAME, 16, started)


def machine(lists: Lists, order: tuple[int, ...]) -> Rig:
    """ONE runs; the others wait in the list in this order."""
    rig = Rig("addi x0,x0,0")
    for task, name in ((ONE, b"one"), (TWO, b"two"), (THREE, b"3")):
        rig.bus.poke(task + 4, name + bytes(8 - len(name)))
    words = {CURRENT: ONE, STARTED: 1, TWO: STACK, STACK: 0x8000_1000, STACK + 4: 0x8000_2000, STACK + 8: 7}
    if lists is SENTINEL:
        items = [task + 0x20 for task in order]
        chain = [READY, *items, READY]
        words |= {READY + 4: chain[1]} | dict(zip(items, chain[2:], strict=True))
        words |= {item + 8: task for item, task in zip(items, order, strict=True)}
    else:
        items = [task + (LINK if lists is NULL_ENDED else 0) for task in order]
        links = [task + LINK for task in order]
        words |= {READY: items[0]} | dict(zip(links, [*items[1:], 0 if lists is NULL_ENDED else items[0]], strict=True))
    for address, value in words.items():
        rig.bus.poke(address, value.to_bytes(4, "little"))
    return rig


def tasks_of(rig: Rig, description: Rtos, **sizes: int) -> Tasks:
    return Tasks(description, program(**sizes), lambda address, size: rig.bus.peek(address, size) or b"")


@pytest.mark.parametrize("lists", [NULL_ENDED, CIRCLE, SENTINEL])
def test_lists_of_every_form(lists: Lists) -> None:
    tasks = tasks_of(machine(lists, (THREE, TWO)), rtos(lists))
    assert [str(thread) for thread in tasks.threads()] == ["one: running", "two: ready", "3: ready"]
    assert [thread.task for thread in tasks.threads()] == [ONE, TWO, THREE]
    assert [thread.thread_id for thread in tasks.threads()] == [2, 3, 4]
    assert tasks.saved_registers(TWO) == {"pc": STACK, "ra": STACK + 4, "a0": STACK + 8}
    assert tasks.stack_pointer(TWO) == STACK + 16
    assert tasks.saved_registers(THREE) == {} and tasks.stack_pointer(THREE) is None


def test_an_array_of_lists_is_as_long_as_its_symbol() -> None:
    rig = machine(SENTINEL, (TWO,))
    for word, value in ((READY + 12, THREE + 0x20), (THREE + 0x20, READY + 8), (THREE + 0x28, THREE)):
        rig.bus.poke(word, value.to_bytes(4, "little"))
    assert len(tasks_of(rig, rtos(SENTINEL), ready=8).threads()) == 2
    assert len(tasks_of(rig, rtos(SENTINEL), ready=16).threads()) == 3


def test_numbers_stay_when_tasks_come_and_go() -> None:
    rig = machine(CIRCLE, (TWO, THREE))
    tasks = tasks_of(rig, rtos(CIRCLE))
    assert [(thread.thread_id, thread.task) for thread in tasks.threads()] == [(2, ONE), (3, TWO), (4, THREE)]
    rig.bus.poke(CURRENT, THREE.to_bytes(4, "little"))
    rig.bus.poke(READY, bytes(4))
    assert [(thread.thread_id, thread.task) for thread in tasks.threads()] == [(4, THREE)]


def test_before_the_first_task_there_is_none() -> None:
    rig = machine(CIRCLE, (TWO,))
    rig.bus.poke(STARTED, bytes(4))
    assert tasks_of(rig, rtos(CIRCLE, started="started")).threads() == []
    assert tasks_of(rig, rtos(CIRCLE)).threads() != []
    rig.bus.poke(CURRENT, bytes(4))
    assert tasks_of(rig, rtos(CIRCLE)).threads() == []


def test_symbols_decide() -> None:
    assert rtos(CIRCLE, started="started").fits(program())
    for key, value in (("running", "x"), ("started", "x"), ("needs", ("x",)), ("lists", {"x": "ready"})):
        assert not rtos(CIRCLE)._replace(**{key: value}).fits(program())


def test_an_unknown_place_is_refused() -> None:
    assert tasks_of(Rig("addi x0,x0,0"), rtos(Lists(first="List.head or 0", next=LINK))) is not None
    with pytest.raises(PyvExtError, match=r"^List.head: is not in the debug information of the program; compile it "):
        tasks_of(Rig("addi x0,x0,0"), rtos(Lists(first="List.head", next=LINK)))


@settings(max_examples=draws(40), deadline=None)
@given(st.data(), st.sampled_from([NULL_ENDED, CIRCLE, SENTINEL]))
def test_whatever_memory_holds_looking_ends(data: st.DataObject, lists: Lists) -> None:
    """Words are drawn as they are read: mostly addresses of each other."""
    words: dict[int, int] = {}
    places = st.sampled_from([0, READY, READY + 4, ONE, ONE + LINK, TWO, TWO + LINK, THREE, 3, 0xFFFF_FFFF])

    def read(address: int, size: int) -> bytes:
        assert size > 0
        if size != 4:
            return b"\xff" * (size // 2)
        return words.setdefault(address, data.draw(places)).to_bytes(4, "little")

    tasks = Tasks(rtos(lists), program(ready=64), read)
    threads = tasks.threads()
    assert len(threads) <= MAX_TASKS
    assert len({thread.thread_id for thread in threads}) == len(threads)
    for thread in threads:
        tasks.saved_registers(thread.task), str(thread)


# -- what the protocol says ---------------------------------------------------------------------------------------


@contextmanager
def client_of(rig: Rig) -> Iterator[Client]:
    with session(Debugger(rig.engine, tasks=lambda read: Tasks(rtos(CIRCLE), program(), read))) as (client, _):
        yield client


def word(value: int) -> str:
    return value.to_bytes(4, "little").hex()


def test_threads_of_the_protocol() -> None:
    rig = machine(CIRCLE, (TWO, THREE))
    rig.hart.x[3], rig.hart.x[10] = 0x33, 0xAA
    with client_of(rig) as client:
        assert client.ask("?").startswith("T05thread:2;")
        assert (client.ask("qfThreadInfo"), client.ask("qsThreadInfo"), client.ask("qC")) == ("m2,3,4", "l", "QC2")
        assert bytes.fromhex(client.ask("qThreadExtraInfo,3")) == b"two: ready"
        assert (client.ask("T3"), client.ask("T9"), client.ask("Hg9"), client.ask("Hc-1")) == ("OK", "E01", "E01", "OK")
        hart = client.ask("g")
        assert client.ask("Hg3") == "OK"
        values = [int.from_bytes(bytes.fromhex(client.ask("g"))[4 * n : 4 * n + 4], "little") for n in range(33)]
        assert (values[32], values[1], values[10], values[2]) == (0x8000_1000, 0x8000_2000, 7, STACK + 16)
        assert values[3] == 0x33, "what the frame does not hold is the hart's"
        assert client.ask("Hg2") == "OK" and client.ask("g") == hart


def test_registers_of_a_waiting_task_are_written_into_its_frame() -> None:
    rig = machine(CIRCLE, (TWO, THREE))
    with client_of(rig) as client:
        client.ask("Hg3")
        assert client.ask(f"Pa={word(99)}") == "OK"
        assert rig.bus.peek(STACK + 8, 4) == (99).to_bytes(4, "little") and rig.hart.x[10] == 0
        assert client.ask(f"P2={word(99)}").startswith("E.sp cannot be written")
        client.ask("s")
        assert client.register(10) == 0, "after a step the hart's are meant again"


def test_the_hart_is_a_thread_as_long_as_no_task_runs() -> None:
    rig = machine(CIRCLE, (TWO,))
    rig.bus.poke(CURRENT, bytes(4))
    with client_of(rig) as client:
        assert (client.ask("qfThreadInfo"), client.ask("qC"), client.ask("T1")) == ("m1", "QC1", "OK")
        assert bytes.fromhex(client.ask("qThreadExtraInfo,1")) == b"no task runs"
