"""The register file against its table and docs/interface.md."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from npu_rig import BUFFER, DRAM, REG, RING, SMALL_SPM, SPM, Rig

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.instructions import CSRS
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.abi.registers import ID_VERSION, IRQ_ALL, REGISTERS, TOTALS, TOTALS_OFFSET, UNITS, Irq, Mode
from npu_device.config import FrontEndConfig, L2Config, NpuConfig, QueueConfig
from npu_device.trace.events import Refusal, What

OFFSETS = {register.offset for register in REGISTERS}
UNIT_COUNT = {"TE": 2, "VE": 4, "DMA": 2, "BANK": 8}
UNIT_OFFSETS = {
    unit.offset + 8 * index + half for unit in UNITS for index in range(UNIT_COUNT[unit.name]) for half in (0, 4)
}


def ignored(rig: Rig) -> list[int]:
    return [event["bytes"] for event in rig.happened(What.REJECT) if event["aux"] == Refusal.IGNORED_WRITE]


@given(st.integers(0, 0x3FFF), st.sampled_from((1, 2, 4, 8)), st.booleans())
def test_only_words_at_known_offsets_are_accepted(word: int, size: int, write: bool) -> None:
    offset = 4 * word
    legal = size == 4 and offset in OFFSETS | UNIT_OFFSETS
    assert RIG.device.accepts(offset, size, write) == legal


RIG = Rig()


def test_every_register_of_the_tables_is_there() -> None:
    assert all(RIG.device.accepts(offset, 4, False) for offset in OFFSETS | UNIT_OFFSETS)
    for unit in UNITS:
        assert not RIG.device.accepts(unit.offset + 8 * UNIT_COUNT[unit.name], 4, False)


def test_stable_registers_show_the_same_until_the_next_event() -> None:
    """At any time, after any other read; a second read leaves no trace. Counts of cycles are not stable."""
    rig = Rig()
    rig.submit(Descriptor(opcode=Opcode.NOP))
    rig.idle()
    stable = [offset for offset in sorted(OFFSETS | UNIT_OFFSETS) if rig.device.stable(offset, 4)]
    names = {register.offset: register.name for register in REGISTERS}
    assert {"COMPLETED", "QUEUE_HEAD", "TICKET_STATUS", "PERF_ACCEPTED_LO"} <= {names.get(at) for at in stable}
    assert not {"PERF_CYCLES_LO", "PERF_CYCLES_HI"} & {names.get(at) for at in stable}
    first = [rig.device.read(offset, 4, 100) for offset in stable]
    events = rig.events.count
    for now in (100, 163, 10**6):
        for offset in sorted(OFFSETS | UNIT_OFFSETS):
            rig.device.read(offset, 4, now)
        assert [rig.device.read(offset, 4, now) for offset in stable] == first
    assert rig.events.count == events


def test_reset_values_are_those_of_the_table() -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM), enable=False)
    configured = {"QUEUE_SIZE", "CAPS", "CLUSTERS", "TE_COUNT", "VE_COUNT", "DMA_COUNT", "BANK_COUNT", "SPM_BYTES",
                  "QUEUE_LIMIT"}  # fmt: skip
    for register in REGISTERS:
        if register.name not in configured and not register.name.startswith("PERF_"):
            assert rig.device.read(register.offset, 4, 0) == register.reset, register.name


def test_identification_carries_the_configuration() -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM, mode="loose", queue=QueueConfig(size=64), clusters=2))
    names = ("ID_VERSION", "CAPS", "CLUSTERS", "TE_COUNT", "VE_COUNT", "DMA_COUNT", "BANK_COUNT", "SPM_BYTES",
             "QUEUE_LIMIT", "QUEUE_SIZE")  # fmt: skip
    assert [rig.read(name) for name in names] == [ID_VERSION, 0, 2, 2, 4, 2, 8, 1 << 16, 64, 64]
    assert Rig().read("CAPS") == 0b1111


@pytest.mark.parametrize("register", [r for r in REGISTERS if r.mode is Mode.RO], ids=lambda r: r.name)
def test_writes_to_read_only_registers_are_ignored_counted_and_traced(register: object) -> None:
    rig = Rig()
    name, offset = register.name, register.offset  # type: ignore[attr-defined]
    before = rig.device.read(offset, 4, 100)
    rig.write(name, 0xFFFF_FFFF)
    if "PERF" not in name:
        assert rig.device.read(offset, 4, 100) == before
    assert ignored(rig) == [offset]
    assert rig.counter("BAD_ACCESSES") == 1


@pytest.mark.parametrize(
    ("name", "value"), [("QUEUE_BASE_LO", 0x8000_0040), ("QUEUE_BASE_HI", 3), ("QUEUE_SIZE", 8), ("QUEUE_TAIL", 2)]
)
def test_the_ring_is_set_up_while_disabled_only(name: str, value: int) -> None:
    rig = Rig(enable=False)
    rig.write(name, value)
    assert rig.read(name) == value
    assert ignored(rig) == []
    rig = Rig()
    before = rig.read(name)
    rig.write(name, value)
    assert rig.read(name) == before
    assert ignored(rig) == [REG[name]]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("QUEUE_BASE_LO", 0x8000_0020),
        ("QUEUE_SIZE", 0),
        ("QUEUE_SIZE", 1),
        ("QUEUE_SIZE", 24),
        ("QUEUE_SIZE", 131072),
        ("QUEUE_TAIL", 1025),
    ],
)
def test_a_set_up_that_cannot_be_is_ignored(name: str, value: int) -> None:
    rig = Rig(enable=False)
    before = rig.read(name)
    rig.write(name, value)
    assert rig.read(name) == before
    assert ignored(rig) == [REG[name]]


def test_the_ring_does_not_shrink_below_what_it_holds() -> None:
    rig = Rig(enable=False)
    rig.write("QUEUE_TAIL", 5)
    rig.write("QUEUE_SIZE", 4)
    assert rig.read("QUEUE_SIZE") == 1024
    rig.write("QUEUE_SIZE", 8)
    assert rig.read("QUEUE_SIZE") == 8
    rig.write("QUEUE_TAIL", 9)
    assert rig.read("QUEUE_TAIL") == 5
    assert ignored(rig) == [REG["QUEUE_SIZE"], REG["QUEUE_TAIL"]]


def test_a_tail_counts_from_what_was_fetched() -> None:
    rig = Rig(NpuConfig(mode="loose", spm=SMALL_SPM, queue=QueueConfig(size=8)))
    rig.ring(*[Descriptor()] * 5)
    rig.idle()
    rig.write("CTRL", 0)
    for tail in (14, 13, 4):
        rig.write("QUEUE_TAIL", tail)
    assert rig.read("QUEUE_TAIL") == 13 and ignored(rig) == [REG["QUEUE_TAIL"]] * 2


def test_the_ring_base_has_64_bits() -> None:
    rig = Rig(enable=False)
    rig.write("QUEUE_BASE_LO", 0xFFFF_FFC0)
    rig.write("QUEUE_BASE_HI", 0x1234_5678)
    assert rig.device.ring.base == 0x1234_5678_FFFF_FFC0
    assert rig.read("QUEUE_BASE_HI") == 0x1234_5678


def test_ctrl_keeps_enable_and_policy_and_ignores_the_rest() -> None:
    rig = Rig(enable=False)
    rig.write("CTRL", 0x31)
    assert rig.read("CTRL") == 0x31
    rig.write("CTRL", 0x25)  # flush reads 0
    assert rig.read("CTRL") == 0x21
    assert ignored(rig) == []
    rig.write("CTRL", 0xFFFF_FF49)
    assert rig.read("CTRL") == 0x01
    assert ignored(rig) == [REG["CTRL"]]


@pytest.mark.parametrize(("policy", "bits"), [("retry", 0), ("stall", 1), ("trap", 2), ("drop", 3)])
def test_the_policy_comes_from_the_configuration(policy: str, bits: int) -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM, queue=QueueConfig(full_policy=policy)), enable=False)
    assert rig.read("CTRL") == bits << 4


def test_faults_of_the_bus_are_counted_and_traced() -> None:
    rig = Rig()
    rig.device.refused(0x3C, 2, False, rig.now)
    rig.go(rig.now + 1)
    (event,) = rig.happened(What.REJECT)
    assert (event["aux"], event["bytes"], event["cycle"]) == (Refusal.ACCESS, 0x3C, rig.now)
    assert rig.counter("BAD_ACCESSES") == 1
    assert rig.counter("REJECTED") == rig.counter("SUBMITTED") == 0


def test_each_counter_latches_its_own_high_half() -> None:
    rig = Rig()
    low = TOTALS_OFFSET
    assert TOTALS[0].name == "CYCLES"
    rig.go((5 << 32) - 1)
    assert rig.device.read(low, 4, rig.now) == 0xFFFF_FFFF
    rig.go(5 << 32)
    assert rig.device.read(low + 8, 4, rig.now) == 0
    assert rig.device.read(low + 12, 4, rig.now) == 0
    assert rig.device.read(low + 4, 4, rig.now) == 4
    assert rig.device.read(low, 4, rig.now) == 0
    assert rig.device.read(low + 4, 4, rig.now) == 5


def test_unit_counters_count_what_runs_now() -> None:
    rig = Rig()
    rig.submit(Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=64, type_in0=DataType.INT8, in0_addr=DRAM, out_addr=SPM))
    begin = rig.stamps(What.DMA_BEGIN)[1]
    rig.go(begin + 50)
    assert rig.device.read(0x500, 4, rig.now) == 50
    rig.idle()
    assert rig.device.read(0x500, 4, rig.now) == rig.stamps(What.DMA_END)[1] - begin
    assert rig.device.read(0x508, 4, rig.now) == 0


def test_each_unit_has_its_counter() -> None:
    rig = Rig()
    load = Descriptor(opcode=Opcode.LOAD, tile_m=1, tile_k=256, type_in0=DataType.INT8, in0_addr=DRAM, out_addr=SPM)
    for index in range(2):
        rig.submit(load.with_(stream=index + 1, out_addr=SPM + 0x1000 * index))
    rig.idle()
    busy = [rig.device.read(0x500 + 8 * index, 4, rig.now) for index in range(2)]
    assert sorted(busy) == sorted(
        end - begin
        for begin, end in ((rig.stamps(What.DMA_BEGIN)[ticket], rig.stamps(What.DMA_END)[ticket]) for ticket in (1, 2))
    )


def test_the_line_is_a_level_of_status_and_mask() -> None:
    rig = Rig()
    bad = Descriptor(opcode=99)
    rig.submit(bad)
    assert rig.read("IRQ_STATUS") == Irq.ERROR
    assert not rig.device.irq
    rig.write("IRQ_MASK", int(Irq.ERROR))
    assert rig.device.irq
    rig.write("IRQ_MASK", int(Irq.DONE))
    assert not rig.device.irq
    rig.write("IRQ_MASK", IRQ_ALL)
    rig.write("IRQ_ACK", int(Irq.ERROR))
    assert not rig.device.irq
    assert rig.read("IRQ_STATUS") == 0
    assert len(rig.happened(What.IRQ)) == 2


def test_the_mask_has_only_bits_that_exist() -> None:
    rig = Rig()
    rig.write("IRQ_MASK", 0xFFFF_FFFF)
    assert rig.read("IRQ_MASK") == IRQ_ALL
    assert ignored(rig) == [REG["IRQ_MASK"]]


def test_write_only_registers_read_zero() -> None:
    assert RIG.device.read(REG["DOORBELL"], 4, 5) == RIG.device.read(REG["IRQ_ACK"], 4, 5) == 0


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_an_event_in_the_cycle_of_its_acknowledgement_keeps_its_bit(offset: int) -> None:
    """ACK in cycle `now` takes effect at the start of now + 1: an error of that cycle survives, an older one not."""
    rig = Rig(NpuConfig(spm=SMALL_SPM, frontend=FrontEndConfig(fetch_tight=10)))
    rig.write("IRQ_MASK", IRQ_ALL)
    rig.submit(Descriptor(opcode=99))
    answer = rig.device.port.enqcmd(BUFFER, Descriptor(opcode=98).pack(), 0, rig.now)
    happens = rig.now + 1 + answer.cycles  # type: ignore[union-attr]
    rig.go(happens - 1 + offset)
    assert rig.device.irq
    rig.write("IRQ_ACK", int(Irq.ERROR))
    rig.go(happens + 2)
    assert rig.device.irq == (offset < 1)
    irqs = [event["cycle"] for event in rig.happened(What.IRQ)]
    assert len(irqs) == (2 if offset == -1 else 1)  # in the same cycle the line does not move


def test_reads_that_show_a_completion_are_events_once() -> None:
    rig = Rig()
    rig.read("COMPLETED")
    rig.read("IRQ_STATUS")
    ticket = rig.submit(Descriptor(irq=1))
    rig.write("TICKET_SEL", ticket)
    for name in ("COMPLETED", "TICKET_STATUS", "IRQ_STATUS") * 3:
        rig.read(name)
    rig.write("TICKET_SEL", 77)
    rig.read("TICKET_STATUS")
    assert [(e["ticket"], e["bytes"]) for e in rig.happened(What.NOTIFY)] == [
        (0, REG["COMPLETED"]),
        (ticket, REG["TICKET_STATUS"]),
        (0, REG["IRQ_STATUS"]),
    ]


def test_csrs_mirror_their_registers() -> None:
    rig = Rig(enable=False)
    csr = rig.device.csr
    address = {entry.register: entry.address for entry in CSRS}
    assert csr.addresses == set(address.values())
    csr.write(address["QUEUE_BASE_LO"], 0x8000_1000, rig.now, 0x8000_1000)
    csr.write(address["QUEUE_SIZE"], 16, rig.now, 16)
    csr.write(address["IRQ_MASK"], 31, rig.now, 31)
    assert [rig.read(name) for name in ("QUEUE_BASE_LO", "QUEUE_SIZE", "IRQ_MASK")] == [0x8000_1000, 16, 31]
    rig.write("CTRL", 1)
    rig.submit(Descriptor(opcode=99))
    for name in ("QUEUE_BASE_LO", "QUEUE_BASE_HI", "QUEUE_SIZE", "IRQ_MASK", "IRQ_STATUS", "COMPLETED"):
        assert csr.read(address[name], rig.now) == rig.read(name)
        assert csr.stable(address[name]) == rig.device.stable(REG[name], 4)
    assert csr.read(address["IRQ_ACK"], rig.now) == 0
    csr.write(address["IRQ_ACK"], 0, rig.now, 0)  # csrrc: new content without the bits, nothing written
    assert rig.read("IRQ_STATUS") == Irq.ERROR
    csr.write(address["IRQ_ACK"], int(Irq.ERROR), rig.now, int(Irq.ERROR))
    assert rig.read("IRQ_STATUS") == 0
    csr.write(address["QUEUE_SIZE"], 32, rig.now, 32)
    assert rig.read("QUEUE_SIZE") == 16
    assert ignored(rig) == [REG["QUEUE_SIZE"]]
    assert RING % 64 == 0


@pytest.mark.parametrize("enabled", [False, True])
def test_a_device_with_an_l2_has_it_before_it_is_used(enabled: bool) -> None:
    rig = Rig(NpuConfig(spm=SMALL_SPM, l2=L2Config(enabled=enabled)), enable=False)
    assert (rig.device.state()["pipeline"] is not None) == enabled
