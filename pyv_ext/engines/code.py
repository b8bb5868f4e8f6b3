"""Decode cache: decoded instructions by address, their invalidation by writes to memory, and hooked addresses."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyv_ext.engines.closures import After, Closures, Step, leave
from pyv_ext.engines.core import Stop
from pyv_ext.engines.steps import step_of
from pyv_ext.errors import PyvExtError
from pyv_ext.hart.hart import Hart
from pyv_ext.isa import Instruction
from pyv_ext.machine.state import LINE
from pyv_ext.machine.traps import Cause

if TYPE_CHECKING:
    from pyv_ext.engines.engine import Engine

Hook = Callable[[Hart], Stop | None]


class DecodedInstruction:
    """Content of an address: an instruction, or a trap (`instruction` None)."""

    __slots__ = ("illegal", "instruction", "slow", "step")

    def __init__(
        self, instruction: Instruction | None, step: Step, slow: Callable[[], After | None], illegal: int | None = None
    ) -> None:
        """`illegal`: the word if it is an illegal instruction, else None."""
        self.instruction = instruction
        self.step = step
        self.slow = slow
        self.illegal = illegal


class _Line(NamedTuple):
    """64-byte line from which instructions were decoded."""

    memory: memoryview | None
    """Current content of the line; None: there is no memory."""
    content: bytes | None
    """Content when it was decoded."""
    sizes: dict[int, int]
    """Size in bytes of each instruction that overlaps the line, by address."""


class _Run:
    """Run of decoded instructions not yet registered with its cache lines."""

    def __init__(self, pc: int, memory: memoryview, extra_bytes: int) -> None:
        """`extra_bytes`: bytes after the run that belong to its lines (see `DecodeCache._lines_of`)."""
        self._pc = pc
        self._memory = memory
        self._content = bytes(memory)
        self.lines = range(pc & -LINE, pc + len(memory) + extra_bytes, LINE)
        """Addresses of the lines with which the run is registered."""

    @property
    def changed(self) -> bool:
        """Check whether memory differs from the bytes that were decoded."""
        return self._memory != self._content

    def instructions(self) -> Iterator[tuple[int, int]]:
        """Yield the address and the size in bytes of each instruction."""
        content, offset = self._content, 0
        while offset < len(content):
            size = 4 if content[offset] & 3 == 3 else 2
            yield self._pc + offset, size
            offset += size

    def original_line(self, base: int, line: bytes) -> bytes:
        """Return the line at `base` as it was when the run was decoded; `line`: its current bytes."""
        low, high = max(self._pc - base, 0), min(self._pc + len(self._content) - base, LINE)
        first = base - self._pc
        return line if low >= high else line[:low] + self._content[first + low : first + high] + line[high:]


MAX_OVERWRITES = 8
"""Overwrites of a line's instructions after which it is not cached (`DecodeCache.is_self_modifying`)."""

MAX_DECODED = 1 << 14
"""Maximum instructions cached by address and word, so that code that is written repeatedly is decoded once."""


class DecodeCache:
    """Decoded instructions of one hart."""

    def __init__(self, core: "Engine", mark: Hook) -> None:
        """`mark`: the hook that native code executes without Python."""
        self._core = core
        self._mark = mark
        self._bus = core.bus
        self._closures = Closures(core.isa, core.hart, core.bus)
        self.decoded: dict[int, DecodedInstruction] = {}
        """Results of `at` by address, as long as memory has these instructions."""
        self._by_word: dict[tuple[int, int], DecodedInstruction] = {}
        """Results of `executable` by address and word."""
        self._lines: dict[int, _Line] = {}
        self._runs_by_line: dict[int, list[_Run]] = {}
        """Runs of `cover_all` whose instructions are not registered with their lines yet, by line."""
        self._pending_runs: dict[_Run, None] = {}
        """All runs of `_runs_by_line`."""
        self._overwrites: dict[int, int] = {}
        """Overwrites by line."""
        self.self_modifying_lines: dict[int, bytes | None] = {}
        """Lines that are not cached, and their content at the last `recache`."""
        self.supports_self_modifying = False
        """Whether native code executes self-modifying lines."""
        self.steps: dict[int, Step] = {}
        """Closures of decoded instructions, which a burst calls in a loop; that of a hooked address leaves the loop."""
        self.hooks: dict[int, list[Hook]] = {}
        self.on_drop: list[Callable[[Iterable[int]], None]] = []
        """`f(pcs)`: invalidates everything else derived from the instructions at these addresses."""
        core.bus.on_code_write.append(self._invalidate_written)

    def at(self, pc: int) -> DecodedInstruction:
        """Return the instruction at `pc`, or the trap of its fetch or decoding."""
        return self.decoded.get(pc) or self._decode(pc)

    def _decode(self, pc: int) -> DecodedInstruction:
        word = self.word(pc)
        if word is None:
            fault = pc if self._bus.peek(pc, 2) is None else pc + 2
            decoded = DecodedInstruction(None, leave, lambda: self._core.trap(Cause.FETCH_FAULT, fault))
            if fault == pc:
                return decoded
        else:
            decoded = self.executable(pc, word)
        if self.is_self_modifying(pc):
            return decoded
        self.cover(pc, 4 if decoded.instruction is None else decoded.instruction.length)
        self.decoded[pc] = decoded
        self.steps[pc] = leave if pc in self.hooks else decoded.step
        return decoded

    def word(self, pc: int) -> int | None:
        """Return the 2 or 4 bytes at `pc`, by the length in their low bits; None unless all of them are in memory."""
        ram, peek = self._bus.rams[0], self._bus.peek
        if ram.base <= pc <= ram.end - 4 and not pc & 1:
            index = pc - ram.base >> 1
            low = ram.u16[index]
            return low if low & 3 != 3 else low | ram.u16[index + 1] << 16
        raw = peek(pc, 4) or peek(pc, 2)
        if raw is None:
            return None
        word = int.from_bytes(raw, "little")
        if word & 3 != 3:
            return word & 0xFFFF
        if len(raw) == 2:  # it spans two memories, or half of it is unmapped
            second = peek(pc + 2, 2)
            return None if second is None else word | int.from_bytes(second, "little") << 16
        return word

    def cover(self, pc: int, size: int) -> None:
        """Register an instruction, of `size` bytes at `pc`, with its lines, which are not self-modifying:
        `on_drop` is called when it is overwritten."""
        for base in self._lines_of(pc, size):
            sizes = self._line_sizes(base)
            if sizes is not None:
                sizes[pc] = size

    def _lines_of(self, pc: int, size: int) -> tuple[int, ...]:
        """Return the addresses of the lines of an instruction. Where instructions are fetched ahead, add the line of
        the next instruction, to which a store must take the slow path (`Engine._overwritten_word`)."""
        first, last = pc & -LINE, pc + (4 if self._core.fetches_ahead else size - 1) & -LINE
        return (first,) if first == last else (first, last)

    def cover_all(self, pc: int, size: int) -> None:
        """Register the instructions that fill the `size` bytes at `pc`, as `cover` does."""
        ram = self._bus.ram_at(pc, size)
        assert ram is not None  # decoded instructions are in memory
        run = _Run(pc, ram.u8[pc - ram.base : pc - ram.base + size], 3 if self._core.fetches_ahead else 0)
        self._pending_runs[run] = None
        for base in run.lines:
            if base not in self.self_modifying_lines:
                self._runs_by_line.setdefault(base, []).append(run)
                self._bus.mark_code(base)

    def _split(self, base: int) -> None:
        """Register each instruction of the runs that touch the line at `base` with its lines."""
        for run in tuple(self._runs_by_line.get(base, ())):
            del self._pending_runs[run]
            for line in run.lines:
                runs = [candidate for candidate in self._runs_by_line.pop(line, ()) if candidate is not run]
                if runs:
                    self._runs_by_line[line] = runs
            for pc, size in run.instructions():
                for line in self._lines_of(pc, size):
                    sizes = self._line_sizes(line, run)
                    if sizes is not None:
                        sizes[pc] = size

    def _line_sizes(self, base: int, run: _Run | None = None) -> dict[int, int] | None:
        """Return the sizes of the instructions in a line, by address, and mark it as code; None: it is self-modifying.
        `run`: a run that was decoded before; the line then counts as code since its decoding."""
        line = self._lines.get(base)
        if line is None:
            if base in self.self_modifying_lines:
                return None
            line = self._line(base)
            if run is not None and line.content is not None:
                line = line._replace(content=run.original_line(base, line.content))
            self._lines[base] = line
            self._bus.mark_code(base)
        return line.sizes

    def _line(self, base: int) -> _Line:
        ram = self._bus.ram_at(base, LINE)
        if ram is None:
            return _Line(None, None, {})
        memory = ram.u8[base - ram.base : base - ram.base + LINE]
        return _Line(memory, bytes(memory), {})

    def executable(self, pc: int, word: int) -> DecodedInstruction:
        """Return the instruction in the low bits of `word`, as it would be at `pc`."""
        word &= 0xFFFFFFFF if word & 3 == 3 else 0xFFFF
        decoded = self._by_word.get((pc, word))
        if decoded is None:
            if len(self._by_word) >= MAX_DECODED:
                self._by_word.clear()
            decoded = self._by_word[pc, word] = self._make(pc, word)
        return decoded

    def _make(self, pc: int, word: int) -> DecodedInstruction:
        core = self._core
        instruction = core.isa.decode(word)
        if instruction is None:
            return DecodedInstruction(None, leave, lambda: core.trap(Cause.ILLEGAL, word), word)
        decoded = DecodedInstruction(instruction, leave, step_of(core, pc, instruction))
        if self._closures.makes(instruction):
            decoded.step = partial(self._execute_first, pc, decoded, instruction)
        return decoded

    def _execute_first(self, pc: int, decoded: DecodedInstruction, instruction: Instruction) -> After | None:
        """Execute an instruction for the first time: create its closure, which is not needed while native code executes
        the instruction."""
        first, decoded.step = decoded.step, self._closures.make(instruction, pc)
        if self.steps.get(pc) is first:
            self.steps[pc] = decoded.step
        return decoded.step()

    # -- changes -----------------------------------------------------------------------------------------------

    def _invalidate_written(self, address: int, size: int) -> None:
        """Invalidate the lines in which a write has overwritten an instruction; ignore writes to data beside code."""
        end = address + size
        bases: Iterable[int] = range(address & -LINE, end, LINE)
        if size // LINE > len(self._lines) + len(self._runs_by_line):
            bases = [base for base in (*self._lines, *self._runs_by_line) if address - LINE < base < end]
        for base in bases:
            if base in self._runs_by_line:
                self._split(base)
            line = self._lines.get(base)
            if line is not None and any(pc < end and address < pc + size for pc, size in line.sizes.items()):
                self._drop(base)
                self._count_overwrite(base)

    def refresh(self) -> None:
        """Invalidate all lines that differ from memory, even by changes that the bus has not seen."""
        for run in tuple(self._pending_runs):
            if run in self._pending_runs and run.changed:
                self._split(run.lines[0])
        for base, line in tuple(self._lines.items()):
            if line.memory != line.content:
                self._drop(base)

    def _drop(self, base: int) -> None:
        self._split(base)
        pcs = self._lines.pop(base).sizes
        for pc, size in pcs.items():
            for line in self._lines_of(pc, size):
                if line in self._lines:
                    self._lines[line].sizes.pop(pc, None)
            self.decoded.pop(pc, None)
            self.steps.pop(pc, None)
        self._bus.unmark_code(base)
        self._notify_dropped(pcs)

    def _notify_dropped(self, pcs: Iterable[int]) -> None:
        for listener in self.on_drop:
            listener(pcs)

    # -- self-modifying lines ----------------------------------------------------------------------------------

    def is_self_modifying(self, pc: int) -> bool:
        """Check whether `pc` is in a self-modifying line, one that was overwritten often. Instructions of such lines
        are not cached, writes to them are not reported, and each execution reads memory."""
        return bool(self.self_modifying_lines) and (
            pc & -LINE in self.self_modifying_lines or pc + 2 & -LINE in self.self_modifying_lines
        )

    def recache(self, pc: int) -> None:
        """Cache the lines of a hot `pc` again if they are unchanged since the last call; `pc` is in a self-modifying
        line."""
        for base in {pc & -LINE: None, pc + 2 & -LINE: None}:
            if base in self.self_modifying_lines:
                content = self._bus.peek(base, LINE)
                if content == self.self_modifying_lines[base]:
                    self._clear_self_modifying(base)
                else:
                    self.self_modifying_lines[base] = content

    def _count_overwrite(self, base: int) -> None:
        """Count an overwritten instruction of a line, and mark the line as self-modifying at `MAX_OVERWRITES`. Lines
        with hooks and the last line of RAM stay cached."""
        times = self._overwrites[base] = self._overwrites.get(base, 0) + 1
        ram = self._bus.rams[0]
        is_inside = ram.base <= base < ram.end - LINE
        if times < MAX_OVERWRITES or not self.supports_self_modifying or not is_inside or self._core.fetches_ahead:
            return
        if not any(pc in self.hooks for pc in _candidate_pcs(base)):
            self.self_modifying_lines[base] = None

    def _clear_self_modifying(self, base: int) -> None:
        """Clear the mark of a self-modifying line and its count."""
        del self.self_modifying_lines[base]
        self._overwrites[base] = 0
        self._notify_dropped(_candidate_pcs(base))

    # -- hooks -------------------------------------------------------------------------------------------------

    def add_hook(self, pc: int, hook: Hook, *, first: bool = False) -> None:
        """Call `hook(hart)` right before each instruction that begins at `pc`, after the hooks there or `first`.

        A hook that returns a Stop ends the run with it before the instruction; hooks after it are not called.
        """
        for base in {pc & -LINE: None, pc + 2 & -LINE: None}:
            if base in self.self_modifying_lines:
                self._clear_self_modifying(base)
        hooks = self.hooks.setdefault(pc, [])
        hooks.insert(0 if first else len(hooks), hook)
        if pc in self.steps:
            self.steps[pc] = leave
        self._notify_dropped([pc])

    def has_only_mark(self, pc: int) -> bool:
        """Check whether the mark is the only hook of the instruction at `pc`."""
        return self.hooks.get(pc) == [self._mark]

    def remove_hook(self, pc: int, hook: Hook) -> None:
        """Undo one `add_hook`; PyvExtError if there is no such hook."""
        hooks = self.hooks.get(pc, [])
        if hook not in hooks:
            raise PyvExtError(f"no such hook at {pc:#x}: remove what add_hook was given")
        hooks.remove(hook)
        if not hooks:
            del self.hooks[pc]
            if pc in self.decoded:
                self.steps[pc] = self.decoded[pc].step
            self._notify_dropped([pc])


def _candidate_pcs(base: int) -> range:
    """Return the addresses at which instructions with bytes in a line may begin."""
    return range(base - 2, base + LINE, 2)
