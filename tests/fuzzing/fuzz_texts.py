"""Mutated YAML and JSON of every kind, results for `diff`, packets for the GDB stub, and assembly sources."""

import json
import random
import socket
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_inputs import FoundError, change, flipped, refused

from npu_device.abi.memory_map import DRAM_BASE
from pyv_ext.gdb.debugger import Debugger
from pyv_ext.gdb.packets import frame
from pyv_ext.gdb.session import GdbSession, SessionEnd
from pyv_npu import manifest
from pyv_npu.cli.shared import replay
from pyv_npu.config import load as load_config
from pyv_npu.config.energy_table import read_table
from pyv_npu.config.rtos_file import read_rtos
from pyv_npu.config.shape_file import read_shape
from pyv_npu.config.yaml_file import load_qconfig
from pyv_npu.debug import monitors, npu_feature
from pyv_npu.faults.plan import read_plan
from pyv_npu.instruction_sets import every_instruction
from pyv_npu.kv_quant.encoded_kv import read_thresholds
from pyv_npu.platform import Platform
from pyv_npu.studies import diff
from pyv_npu.studies.diff_page import page, render
from pyv_npu.studies.sweep import axes
from pyv_npu.studies.sweep.folder import SweepFolder, changed_points
from pyv_npu.workloads.firmware import load as load_program
from pyv_npu.workloads.firmware import run_program
from toolchain.assembler.program import assemble
from toolchain.decoders.config_facts import derive_figures

ROOT = Path(__file__).resolve().parents[2]
READERS: dict[str, Callable[[Path], object]] = {
    "configs": lambda path: load_config([path], None, {}), "presets": lambda path: load_config([], str(path), {}),
    "examples": lambda path: read_plan(path, drawn=True), "qconfigs": load_qconfig, "rtos": read_rtos,
    "energy_tables": lambda path: read_table(str(path)),
    "sweep": axes.read, "record": replay.read, "shape": lambda path: derive_figures(read_shape(path)),
}  # fmt: skip
"""By the folder of shipped files."""
TOKENS = (
    "!!bool maybe", "!!int x", "!!float ''", "!!timestamp x", "!!binary '*'", "!!null x", "!!python/object:os.system x",
    "!!set {a}", "!!omap [a]", "!!pairs [a: 1]", "2024-99-99", "&a [*a]", "*b", "<<: 3", "? [a]", "{[a]: b}", "1e999",
    ".nan", ".inf", "-.inf", "0x", "0o9", "9" * 30, "1:99:99", "~", "'", "|", ">\n x", "%YAML 9", "---", "...", "\t",
    "!x y", "!<tag:x> y", "\x85", "\u2028", "\ufeff", "null", "true", "[]", "{}", "a: b: c", "- - -", "@", "`", "\x00",
)  # fmt: skip


@cache
def yaml_seeds() -> tuple[tuple[str, str], ...]:
    """(reader, text): shipped files of every kind, and small ones of those that do not ship."""
    found = [(name, path.read_text()) for name in READERS for path in sorted((ROOT / "pyv_npu" / name).glob("*.yaml"))]
    sweep = "program: hello\nbase: {mode: loose}\naxes: {core.timing.alu: 1:4, queue-size: [8, 16]}\nrepeat: 2\n"
    record = "record: {command_line: [pyv-npu, run, hello], versions: {a: b}, inputs_sha256: {hello: c}}\n"
    shape = "layers: 2\nwidth: 64\nheads: 4\nkv_heads: 4\nhead_dim: 16\nffn: 128\nvocab: 100\nrotary: 8\ntied: true\n"
    return (*found, ("sweep", sweep), ("record", record), ("shape", shape))


def yaml_files(chance: random.Random, folder: Path) -> bool:
    """Tokens, lines and bytes of a YAML file are changed; any reader takes any file."""
    reader, text = chance.choice(yaml_seeds())
    reader = reader if chance.random() < 0.9 else chance.choice(list(READERS))
    lines = text.splitlines()
    for _ in range(chance.randint(1, 2)):
        at, token = chance.randrange(len(lines)), chance.choice(TOKENS)
        head, colon, _rest = lines[at].partition(":")
        kind = chance.randrange(5)
        if kind == 0:
            lines[at] = f"{head}: {token}" if colon else token
        elif kind == 1:
            lines[at] = f"{lines[at]} {token}"
        elif kind == 2:
            lines.insert(at, token)
        elif kind == 3:
            lines.insert(at, chance.choice(lines))
        else:
            lines[at] = " " * chance.randrange(5) + lines[at].strip()
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    path = folder / "fuzzed.yaml"
    path.write_bytes(flipped(data, chance) if data and chance.random() < 0.1 else data)
    try:
        READERS[reader](path)
    except Exception as error:
        return not refused(error)
    return True


LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512, "vocab_size": 1024,
    "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu", "attention_bias": False, "head_dim": 64,
}  # fmt: skip
DEEPSEEK = LLAMA | {
    "model_type": "deepseek_v3", "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 64, "first_k_dense_replace": 1,
}  # fmt: skip
ROWS = [[0.5, 0.25, 0.0], [0.5, 0.25]]
THRESHOLDS = {
    "n_quant_group": 3, "key": {"upper_threshold": ROWS, "lower_threshold": ROWS},
    "value": {"upper_threshold": ROWS, "lower_threshold": ROWS},
}  # fmt: skip
MANIFEST = {
    "format": manifest.MANIFEST_FORMAT, "what": "report", "version": "0.1.0",
    "inputs_sha256": {"fuzzed.json": "0" * 64},
    "files_sha256": {"manifest.json": "1" * 64, "points": "2" * 64},
}  # fmt: skip
POINT = {"schema": 1, "result": {"cycles": 5}, "address": "ab", "sha256": "3" * 64}


def folder_of(path: Path) -> object:
    """A folder that is read by its manifest, as `verify` does."""
    path.rename(path.parent / manifest.FILE)
    contents = manifest.read(path.parent)
    return contents and manifest.problems(path.parent, contents)


def sweep_of(path: Path) -> object:
    """A folder with one point, as a sweep that goes on reads it."""
    points = path.parent / "sweep" / "points"
    points.mkdir(parents=True, exist_ok=True)
    path.rename(points / "ab.json")
    return SweepFolder(points.parent).record("ab"), changed_points(points.parent)


DOCUMENTS: tuple[tuple[dict[str, Any], Callable[[Path], object]], ...] = (
    (LLAMA, lambda path: derive_figures(read_shape(path))), (DEEPSEEK, lambda path: derive_figures(read_shape(path))),
    (THRESHOLDS, lambda path: read_thresholds(path, 2)), (MANIFEST, folder_of), (POINT, sweep_of),
)  # fmt: skip


def json_files(chance: random.Random, folder: Path) -> bool:
    """Values and bytes of a document of JSON are changed; its reader takes it."""
    seed, reader = chance.choice(DOCUMENTS)
    document = json.loads(json.dumps(seed))
    for _ in range(chance.randint(1, 3)):
        change(document, chance)
    data = json.dumps(document).encode()
    path = folder / "fuzzed.json"
    path.write_bytes(flipped(data, chance) if chance.random() < 0.3 else data)
    try:
        reader(path)
    except Exception as error:
        return not refused(error)
    return True


@cache
def result_seeds() -> tuple[str, ...]:
    """Results of a run, of a comparison and of a list of widths."""
    run = run_program(load_config([], None, {}).config, "submit_latency", {"n": 3, "phases": 1}).json
    model = json.loads(json.dumps(run))
    model["explanation"] = {"causes": {"start": 4, "dram": 9}}
    model["llm"] = {"tokens_per_second": 3.5}
    both = {"schema": 1, "loose": run, "tight": model, "ratio": {"cycles": 1.5}}
    return tuple(map(json.dumps, (run, model, both, {"sweep": {"4": {}, "8": {}}, "runs": [run, model]})))


LIMITS = (
    "cycles > +2%", "t_submit_p99 > 3", "te_utilization < 1", "commands_per_second > -3", "npu.te_busy.0 > 1",
    "bank_conflict_stall > 0", "latency.reasons.bus > 1", "bytes_read > +1%", "tokens_per_second < 9",
)  # fmt: skip


def results(chance: random.Random, folder: Path) -> bool:
    """Values of one of two results are changed, then what differs is said in all forms."""
    text = chance.choice(result_seeds())
    paths = folder / "a.json", folder / "b.json"
    for path in paths:
        document: Any = json.loads(text)
        for _ in range(chance.randint(0, 3)):
            change(document, chance)
        data = json.dumps(document).encode()
        path.write_bytes(flipped(data, chance) if chance.random() < 0.2 else data)
    try:
        before, after = map(diff.load, paths)
        limit = diff.threshold(chance.choice(LIMITS), [*before.runs, *after.runs])
        try:
            beyond = diff.failures(before, after, [limit])
        except diff.UsageError as error:
            beyond = []
            refused(error)
        found = diff.Difference(before, after)
        json.dumps(found.to_json([(one.text, change) for one, change in beyond]))
        render(found)
        if not chance.randrange(20):
            page(found)
    except Exception as error:
        return not refused(error)
    return True


# -- GDB ---------------------------------------------------------------------------------------------------------------

BODIES = (
    "?", "g", "G", "m80000000,40", "M80000000,4:00000000", "X80000000,2:ab",
    "p20", "P20=00000080", "s", "c", "C05",
    "vCont;s:1", "vCont;c", "vCont;r80000000,80000100", "Z0,80000010,4", "z0,80000010,4", "Z2,80004000,4",
    "Z4,40000020,4", "qSupported:x", "qXfer:features:read:target.xml:0,ff", "qRcmd,68656c70", "qfThreadInfo",
    "qThreadExtraInfo,1", "Hg1", "T1", "bs", "bc", "D", "k", "QStartNoAckMode", "vKill;1", "qC", "!",
)  # fmt: skip
MONITORS = ("help", "npu queue", "npu regs", "npu latency", "save x", "save ../outside", "\x00", "save")


@cache
def machine() -> tuple[Platform, Any]:
    """A platform whose program has just been loaded, and a snapshot of it."""
    platform = Platform(load_config([], None, {"run.max_cycles": "2000"}).config)
    platform.load(load_program("submit_latency"))
    return platform, platform.save()


def gdb_packets(chance: random.Random, folder: Path) -> bool:
    """A client that sends what it likes and leaves: no breakpoint is left, and no file but in the folder."""
    stream = b""
    for _ in range(chance.randint(1, 12)):
        text = chance.choice(BODIES)
        if text.startswith("qRcmd"):
            text = "qRcmd," + chance.choice(MONITORS).encode().hex()
        body = text.encode()
        if chance.random() < 0.5:
            body = flipped(body, chance, 2)
        packet = frame(body)
        stream += flipped(packet, chance, 1) if chance.random() < 0.1 else packet
        stream += chance.choice((b"", b"", b"", b"+", b"\x03", b"GET / HTTP/1.1\r\n"))
    platform, start = machine()
    platform.restore(start)
    hooks = set(platform.engine.code.hooks)
    debugger = Debugger(platform.engine, features=[npu_feature(platform)], limit=2000)
    ours, theirs = socket.socketpair()
    session = GdbSession(theirs, debugger, monitors(platform, folder))

    def send() -> None:
        with ours:
            ours.settimeout(5)
            try:
                ours.sendall(stream)
                ours.shutdown(socket.SHUT_WR)
                while ours.recv(1 << 16):
                    pass
            except OSError:
                pass

    client = threading.Thread(target=send, daemon=True)
    client.start()
    try:
        with theirs:
            end = session.run()
    finally:
        client.join()
        debugger.points.clear()
    if platform.bus.guards or platform.engine.code.hooks.keys() != hooks:
        raise FoundError(f"breakpoints are left after {end}")
    outside = [path for path in folder.rglob("*") if path.parent != folder]
    if outside or (folder.parent / "outside").exists():
        raise FoundError(f"files outside of the folder: {outside}")
    return end is not SessionEnd.LOST


# -- the assembler -----------------------------------------------------------------------------------------------------

SOURCE = """
    .section .text
    .globl _start
    .equ COUNT, 4 * (2 + 1)
_start:
    li a0, COUNT
    la t0, table
1:  lw t1, 4(t0)
    addi a0, a0, -1
    enqcmd_t a1, t0, x0
    csrrw x0, mstatus, t1
    bnez a0, 1b
    mul a0, a0, a1
    sw a0, table, t2
    jal ra, _start
    beqz a0, 1b
    lui t0, %hi(table)
    c.addi a0, 1
    .align 4
table: .word 1, 2, table - _start, 0x80000000
    .byte 'a', -1, 255
    .asciz "text\\n\\x41"
    .space 64, 3
    .balign 16
    .fill 3, 4, 5
    .data
var = table - _start
    .dword var, ~COUNT | 3 ^ 5 << 2
"""
WORDS = (
    ".align 60", ".space 1 << 40", ".word", "1 / 0", "1 << 99999", "((((((", "a" * 300, "1f", "9b", ".org 1 << 31",
    "%hi(x)", "%lo(", "\\x", '"', "'", "#", "-", "/*", '.include "/etc/passwd"', '.incbin "/etc/passwd"', "x31", "x32",
    "0x", "9" * 5000, ".fill 1000000000, 8, 1", ".equ COUNT, COUNT + 1", "fadd.s fa0, fa0, fa0", ".section .x,\"w\"",
    "lui a0, %hi(_start)", ".insn", ".option rvc", ".p2align 31", ".balign 0", ".balign 3", "-1", "1 << 31", "_start",
    "var = var + 1", ".zero -1", "~" * 3000, "1+" * 3000 + "1", ".set _start, 4", ".globl 3", "%pcrel_lo(1b)", ".bss",
)  # fmt: skip


def assembly(chance: random.Random, folder: Path) -> bool:
    """Words, lines and bytes of a source are changed."""
    lines = SOURCE.splitlines()
    for _ in range(chance.randint(1, 3)):
        at, word = chance.randrange(len(lines)), chance.choice(WORDS)
        kind = chance.randrange(4)
        if kind == 0:
            lines[at] = word
        elif kind == 1:
            words = lines[at].split()
            lines[at] = " ".join([*words[:1], word, *words[2:]])
        elif kind == 2:
            lines.insert(at, chance.choice(lines))
        else:
            del lines[at]
    text = "\n".join(lines)
    if text and chance.random() < 0.3:
        text = flipped(text.encode(), chance).decode("latin-1")
    try:
        assemble(text, every_instruction(0, None, ()), "fuzzed.s", DRAM_BASE)
    except Exception as error:
        return not refused(error)
    return True
