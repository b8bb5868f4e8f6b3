"""The firmware of this package: which programs there are and which sources make them."""

from typing import NamedTuple

LOOSE, TIGHT = "loose", "tight"
BOTH = (LOOSE, TIGHT)


class Application(NamedTuple):
    """One program. Paths are relative to the folder of the firmware."""

    name: str
    text: str
    modes: tuple[str, ...] = BOTH
    """Modes of submission in which it has something to show."""

    @property
    def sources(self) -> tuple[str, ...]:
        return (f"apps/{self.name}.c",)


APPLICATIONS = (
    Application("hello", "prints what platform and NPU it finds itself on"),
    Application("submit_latency", "submits the same tile commands in bursts, paced, with interrupts, prebuilt"),
    Application("run_model", "submits the commands of a compiled model; `pyv-npu compile` makes its image"),
    Application("generate", "generates tokens with a compiled decoder; `pyv-npu run DECODER.onnx --generate N`"),
    Application("submit_load", "a queue under load: open and closed loop, streams, priorities, policies, back-off"),
    Application("gemm", "256x256x256 int8 in tiles through the scratchpad, checked by the core"),
    Application("irq_completion", "counts completions in the interrupt handler"),
    Application("fault_illegal", "words of the custom opcode that do not exist trap; execution continues"),
    Application("fault_queue_full", "fills the queue under each policy; every ticket is accounted for"),
    Application("fault_descriptor", "each validation error ends in an error ticket; the queue goes on"),
    Application("fault_timeout", "waits that give up, unknown tickets, waits that are interrupted"),
    Application("fault_access", "wrong width, unknown offset, misaligned, unmapped: exact traps"),
    Application("fault_doorbell", "doorbells beyond the ring are ignored and reported"),
)

RUNTIME_SOURCES = (
    "lib/crt0.S",
    "lib/trap_entry.S",
    "lib/boot.c",
    "lib/console.c",
    "lib/trap.c",
    "lib/expect.c",
    "lib/npu_driver.c",
    "lib/npu_irq.c",
    "lib/npu_submit.c",
    "lib/busy.c",
)
"""Linked into every program."""

LINKER_SCRIPT = "lib/link.ld"
HEADERS = "include"


def application(name: str) -> Application | None:
    """The program of that name."""
    return next((row for row in APPLICATIONS if row.name == name), None)
