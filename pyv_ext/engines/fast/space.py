"""Translation cache of a program under one PMP map of fetches: decoded entries, and regions."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from struct import pack
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from pyv_ext.bus.memory import PAGE
from pyv_ext.engines.code import MAX_DECODED, DecodeCache
from pyv_ext.engines.fast import entries, floating
from pyv_ext.engines.fast.access import RamAccess
from pyv_ext.engines.fast.blocks import (
    ATOMIC,
    CONTROL,
    TRANSLATED,
    BasicBlock,
    BlockWords,
    accesses_csr,
    addresses_of,
    ends_block,
    find_blocks,
    targets_misaligned,
    words_of,
)  # fmt: skip
from pyv_ext.engines.fast.custom import CustomCalls
from pyv_ext.engines.fast.entries import STEP, Entries, MarkedEntries, Numbers, SelfModifyingEntries, entry_of
from pyv_ext.engines.persistent.cache_keys import CacheKeys
from pyv_ext.engines.persistent.profile_image import BlockImage
from pyv_ext.hart.csr import FLOAT
from pyv_ext.hart.pmp import Spans
from pyv_ext.isa import Instruction, OpClass
from pyv_ext.machine.slots import SINK
from pyv_native.compiler import Compiler, NativeCode
from pyv_native.intrinsics import address_of

HOT = 1 << 15
"""Executions of a block by the interpreter before it is translated: about as long as the translation takes."""

WARM = HOT >> 6
"""Executions of a block before it is translated together with a hot one that leads to it."""

REGION = 1000
"""Approximate maximum of instructions in a region."""

ABSORB = 2
"""Maximum size of the older regions that a new region absorbs, relative to it: this bounds repeated translation."""

REGIONS = 1 << 12


_LEAVE, _SELF_MODIFYING, _SELF_MODIFYING_AT_PC = map(
    entry_of, (entries.LEAVE, entries.SELF_MODIFYING, entries.SELF_MODIFYING_AT_PC)
)

if TYPE_CHECKING:
    from pyv_ext.engines.engine import Engine
LONGEST = 4
"""Maximum bytes of an instruction."""
_SYSTEM = {
    OpClass.ECALL: entries.ECALL, OpClass.XRET: entries.XRET, OpClass.WFI: entries.WFI, OpClass.FENCE_I: entries.FENCE_I
}  # fmt: skip
TABLE, FUNCTIONS, SELF_MODIFYING = range(3)
"""Words of a translation cache: addresses of the table of entries, of the functions of regions, and of the table of
`SelfModifyingEntries`."""

Decode = Callable[[int, int, int], int]
"""See `entries.DECODE`."""
_SIZE = (1 << 32) - 1


class DecodedWord(NamedTuple):
    """Decoding of a word, valid at any address that has no hook and whose fetch PMP permits."""

    instruction: Instruction | None
    """None: the word is illegal, or partly outside memory."""
    length: int
    """Length in bytes."""
    ends_block: bool
    """Whether control may leave the sequence after it (`blocks.ends_block`)."""
    is_supported: bool
    """Whether regions may contain it."""
    entry: bytes | None
    """Its entry; None if that depends on the address."""


class TranslatedRegion(NamedTuple):
    """Translated blocks with their native code."""

    native: NativeCode
    heads: tuple[int, ...]
    pcs: frozenset[int]
    block_images: tuple[BlockImage, ...]


class TranslationCache:
    """Translation cache of a core: entries and regions."""

    def __init__(
        self,
        core: "Engine",
        code: DecodeCache,
        numbers: Numbers,
        compiler: Compiler,
        cache_keys: CacheKeys,
        access: RamAccess,
        translate: Callable[[RamAccess, Sequence[BasicBlock]], str],
        custom_calls: CustomCalls,
        marked: MarkedEntries,
        decode: Decode,
        fetchable: Spans | None,
    ) -> None:
        """`access`: accesses of translated code, whose IR `translate` generates; `fetchable`: the ranges in which PMP
        permits fetches, None: no restriction."""
        self._core = core
        self._isa = core.isa
        self._code = code
        self._numbers = numbers
        self._compiler = compiler
        self._keys = cache_keys
        self._access = access
        self._translate = translate
        self._custom_calls = custom_calls
        self._marked_entries = marked
        self._fetchable = fetchable
        self._shadowed = core.bus.shadow is not None
        self._entries = Entries()
        self._native_decode = decode
        self._addresses: dict[int, int] = {}
        """Host address minus guest address of memories, by base."""
        self._decoded_words: dict[int, DecodedWord] = {}
        """Decodings by word."""
        self._self_modifying_entries = SelfModifyingEntries()
        self._functions = memoryview(bytearray(8 * REGIONS)).cast("Q")
        tables = self._entries.table, self._functions, self._self_modifying_entries.table
        self._words = bytearray(pack("3Q", *map(address_of, tables)))
        self.address = address_of(self._words)
        """Address of the words `TABLE`, `FUNCTIONS` and `SELF_MODIFYING`."""
        self.regions: dict[int, TranslatedRegion] = {}

    @property
    def block_images(self) -> list[Sequence[BlockImage]]:
        """Blocks of all regions, for the profile."""
        return [region.block_images for region in self.regions.values()]

    def restore(self, regions: Iterable[Sequence[BlockImage]]) -> None:
        """Translate the regions of a profile."""
        for region in regions:
            self._restore(region)

    def drop(self, pcs: Iterable[int]) -> None:
        """Invalidate the instructions at these addresses, which have changed or are hooked, and the regions that
        contain them."""
        stale = frozenset(pcs)
        for region_id, region in tuple(self.regions.items()):
            if not stale.isdisjoint(region.pcs):
                for head in region.heads:
                    if self._entries.region(head) == region_id:
                        self._entries.enter(head, 0, 0)
                del self.regions[region_id]
        for pc in stale:
            self._entries.forget(pc)

    # -- decoding ----------------------------------------------------------------------------------------------

    def decode(self, pc: int) -> bool:
        """Fill the entries of `pc` and of the code after it in its page, up to an instruction that may end the code;
        False if there is no memory."""
        first, end = pc, (pc | PAGE - 1) + 1
        while pc < end and self._entries.operation(pc) in entries.UNDECODED:
            next_pc, is_end = self._decode_plain(pc)
            if next_pc == pc:
                decoded = self._decode(pc)
                if decoded is None:
                    return pc != first
                next_pc, is_end = pc + decoded.length, decoded.ends_block
            if is_end:
                break
            pc = next_pc
        return True

    def _decode_plain(self, pc: int) -> tuple[int, bool]:
        """Let native code fill the entries of plain instructions from `pc` on, up to a hook or a fetch that PMP does
        not permit. Returns the address after them, and whether they may end the code."""
        ram, end = self._core.bus.ram_at(pc, STEP), self._plain_run_end(pc)
        if ram is None or end <= pc:
            return pc, False
        host_base = self._addresses.get(ram.base)
        if host_base is None:
            host_base = self._addresses[ram.base] = address_of(ram.data) - ram.base
        packed = self._native_decode(host_base + pc, self._entries.address(pc), min(end, ram.end) - pc)
        size = packed & _SIZE
        if size:
            self._code.cover_all(pc, size)
        return pc + size, packed > _SIZE

    def _plain_run_end(self, pc: int) -> int:
        """Return the end of the range from `pc` on, in its page, without hooks, self-modifying lines, or fetches that
        PMP does not permit."""
        end, code = (pc | PAGE - 1) + 1, self._code
        if pc % self._isa.alignment or code.is_self_modifying(pc):
            return pc
        for hook in code.hooks:
            if pc <= hook < end:
                end = hook
        for base in code.self_modifying_lines:
            if pc < base < end:
                end = base
        if self._fetchable is not None:
            end = min(end, next((high for low, high in self._fetchable if low <= pc < high), pc))
        return end

    def _decode(self, pc: int) -> DecodedWord | None:
        """Fill the entry of `pc`; None if there is no memory."""
        word = self._code.word(pc)
        if word is None:
            return self._decode_partial(pc)
        if self._code.is_self_modifying(pc):
            return self._decode_self_modifying(pc, word)
        decoded = self._decoded_word(word)
        self._code.cover(pc, decoded.length)
        self._entries.put(pc, self._entry(pc, decoded))
        return decoded

    def _decode_partial(self, pc: int) -> DecodedWord | None:
        """Assign the slow path to an instruction that is partly outside memory; None if it is wholly outside."""
        self._code.at(pc)
        if pc not in self._code.steps:
            return None
        self._entries.put(pc, _LEAVE)
        return DecodedWord(None, 4, True, False, _LEAVE)

    def _decode_self_modifying(self, pc: int, word: int) -> DecodedWord:
        """Store the entry of the current word at `pc`, which is in a self-modifying line."""
        decoded = self._decoded_word(word)
        if pc < self._core.bus.rams[0].base:  # half of it is in another memory
            self._entries.put(pc, _LEAVE)
            return decoded
        anywhere = decoded.entry is not None and self._permitted(pc, LONGEST)  # lines with hooks are not self-modifying
        self._self_modifying_entries.put(entries.ANYWHERE if anywhere else pc, word, self._entry(pc, decoded))
        self._entries.put(pc, _SELF_MODIFYING if anywhere else _SELF_MODIFYING_AT_PC)
        return decoded

    def _entry(self, pc: int, decoded: DecodedWord) -> bytes:
        """Return the entry of a word at an address."""
        if not self._permitted(pc, decoded.length):
            return _LEAVE
        if pc in self._code.hooks:
            return self._hooked_entry(pc, decoded)
        if decoded.entry is None:
            assert decoded.instruction is not None
            return self._custom(pc, decoded.instruction)
        return decoded.entry

    def _hooked_entry(self, pc: int, decoded: DecodedWord) -> bytes:
        """Return the entry of a hooked instruction: the slow path, unless it is plain and the mark is its only hook;
        hooks may watch stores of other instructions."""
        instruction, entry = decoded.instruction, decoded.entry
        if instruction is None or entry is None or self._core.fetches_ahead or not self._code.has_only_mark(pc):
            return _LEAVE
        if not decoded.is_supported or instruction.row.op_class not in TRANSLATED or instruction.row.floating:
            return _LEAVE
        index = self._marked_entries.index_of(pc, entry)
        return _LEAVE if index is None else entry_of(self._numbers.marked, immediate=index)

    def _custom(self, pc: int, instruction: Instruction) -> bytes:
        """Return the entry of a custom instruction, whose operands are those of an R-type, whatever its syntax."""
        index, word = self._custom_calls.index_of(pc, instruction), instruction.word
        if index is None:
            return _LEAVE
        rd = instruction.rd or SINK
        return entry_of(self._numbers.custom, rd, word >> 15 & 31, word >> 20 & 31, index)

    def _decoded_word(self, word: int) -> DecodedWord:
        """Return the decoding of a word, which is cached."""
        decoded = self._decoded_words.get(word)
        if decoded is None:
            if len(self._decoded_words) >= MAX_DECODED:
                self._decoded_words.clear()
            decoded = self._decoded_words[word] = self._decode_word(word)
        return decoded

    def _decode_word(self, word: int) -> DecodedWord:
        instruction = self._isa.decode(word)
        if instruction is None:
            trap = entry_of(self._numbers.system[entries.ILLEGAL], immediate=word - (word >> 31 << 32))
            return DecodedWord(None, 4 if word & 3 == 3 else 2, True, False, trap)
        row, _, rd, rs1, rs2, imm, _, rs3 = instruction
        rd = rd or SINK
        if row.op_class in TRANSLATED and not row.floating:
            is_supported = not targets_misaligned(instruction, self._isa.alignment)
            plain_entry = entry_of(self._numbers.by_name[row.name], rd, rs1, rs2, imm) if is_supported else _LEAVE
            return DecodedWord(instruction, row.length, row.op_class in CONTROL, is_supported, plain_entry)
        is_supported, operation = self._is_supported(instruction), self._system_operation(instruction)
        entry = None
        if operation is not None:
            imm = instruction.csr << 5 | imm if accesses_csr(instruction) else instruction.level
            entry = entry_of(self._numbers.system[operation], rd, rs1, immediate=imm)
        elif is_supported or (row.floating and floating.operation_of(instruction) in self._numbers.by_float):
            immediate = rs3 | imm << entries.MODE if row.op_class is OpClass.FLOAT else imm
            entry = entry_of(self._operation_code(instruction), rd, rs1, rs2, immediate)
        return DecodedWord(instruction, instruction.length, ends_block(instruction), is_supported, entry)

    def _operation_code(self, instruction: Instruction) -> int:
        """Return the number of the operation of a supported instruction that is not plain."""
        if instruction.row.floating:
            operation = floating.operation_of(instruction)
            assert operation is not None  # else it is not supported
            return self._numbers.by_float[operation]
        if instruction.row.op_class is OpClass.FENCE:
            return self._numbers.fence
        assert instruction.row.op_class in ATOMIC
        return self._numbers.by_name[".".join(instruction.name.split(".")[:2])]  # acquire and release have no effect

    def _system_operation(self, instruction: Instruction) -> str | None:
        """Return the operation of `entries.SYSTEM` of an instruction; None if native code does not execute it."""
        if accesses_csr(instruction):
            return instruction.name.removesuffix("i") if instruction.writes_csr else entries.CSR_READ
        op_class = instruction.row.op_class
        return None if self._shadowed and op_class is OpClass.XRET else _SYSTEM.get(op_class)

    def _is_supported(self, instruction: Instruction) -> bool:
        """Check whether regions may contain an instruction that is not plain."""
        op_class = instruction.row.op_class
        if instruction.row.floating:
            operation = floating.operation_of(instruction)
            return operation is not None and operation in self._numbers.by_float and not operation.strict
        if op_class in ATOMIC or op_class is OpClass.XRET:
            return not self._shadowed
        csr = accesses_csr(instruction) and instruction.csr not in FLOAT  # blocks check the rounding mode once
        return op_class is OpClass.FENCE or op_class is OpClass.ECALL or csr

    def _permitted(self, pc: int, length: int) -> bool:
        """Check whether an instruction may be fetched at `pc`."""
        if pc % self._isa.alignment:
            return False
        spans, end = self._fetchable, pc + length
        return spans is None or any(low <= pc and end <= high for low, high in spans)

    # -- translating -------------------------------------------------------------------------------------------

    def translate(self, pc: int) -> bool:
        """Translate the hot blocks around `pc` to a region; return whether it was added."""
        if self._code.is_self_modifying(pc):
            self._code.recache(pc)
            self._decode(pc)
            return False
        neighbours: dict[int, None] = {}

        def is_untranslated(head: int) -> bool:
            region = self._entries.region(head)
            if region:
                neighbours[region] = None
            return not region and self._entries.heat(head) >= WARM

        budget = ABSORB * _size(self._find(pc, is_untranslated))
        absorbed = set()
        for number in sorted(neighbours, key=lambda region_id: len(self.regions[region_id].pcs)):
            budget -= len(self.regions[number].pcs)
            if budget >= 0:
                absorbed.add(number)
        blocks = self._find(pc, lambda head: is_untranslated(head) or self._entries.region(head) in absorbed)
        return self._install(blocks)

    def _restore(self, region: Sequence[BlockImage]) -> None:
        """Add a region of the profile, unless its memory has changed or has hooks."""
        blocks = []
        for image in region:
            content = self._core.bus.peek(image.pc, image.size) or b""
            if crc32(content) != image.check:
                return
            blocks.append((image.pc, image.pc + image.size & self._isa.mask, words_of(content)))
        for pc in addresses_of(blocks):
            if self._entries.operation(pc) == entries.UNKNOWN:
                self.decode(pc)
            operation = self._entries.operation(pc)
            if operation in entries.UNDECODED or operation in (entries.LEAVE, self._numbers.marked):
                return
        with suppress(LookupError):
            self._add(blocks, region, lambda: self._translate(self._access, [self._block(*block) for block in blocks]))

    def _block(self, pc: int, end: int, words: Sequence[int]) -> BasicBlock:
        """Decode a block of the profile. LookupError if regions do not support one of its instructions, or one
        before the last ends the block: custom instructions may have changed since."""
        instructions: list[tuple[int, Instruction]] = []
        for address, word in zip(addresses_of([(pc, end, words)]), words, strict=True):
            decoded = self._decoded_word(word)
            if (
                decoded.instruction is None
                or not decoded.is_supported
                or (instructions and ends_block(instructions[-1][1]))
            ):
                raise LookupError(f"{word:#x} at {address:#x}")
            instructions.append((address, decoded.instruction))
        return BasicBlock(pc, tuple(instructions), end)

    def _find(self, pc: int, is_hot: Callable[[int], bool]) -> list[BasicBlock]:
        return find_blocks(pc, self._isa.mask, self._instruction_at, self._is_translatable, is_hot, REGION)

    def _instruction_at(self, pc: int) -> Instruction | None:
        if self._entries.operation(pc) in entries.UNDECODED:
            return None
        word = self._code.word(pc)
        return None if word is None else self._decoded_word(word).instruction

    def _is_translatable(self, pc: int, instruction: Instruction) -> bool:
        """Check whether a region may contain the instruction at `pc`."""
        is_supported = self._decoded_word(instruction.word).is_supported and pc not in self._code.hooks
        return is_supported and self._permitted(pc, instruction.length)

    def _install(self, blocks: Sequence[BasicBlock]) -> bool:
        """Translate the blocks; False if there are none, or `REGIONS` is reached."""
        words = [(block.pc, block.end, [instruction.word for _, instruction in block.instructions]) for block in blocks]
        return self._add(words, [*map(self._block_image, blocks)], lambda: self._translate(self._access, blocks))

    def _add(self, blocks: Sequence[BlockWords], block_images: Sequence[BlockImage], text: Callable[[], str]) -> bool:
        """Add a region; `text` generates its IR, unless it is cached. False as for `_install`."""
        region_id = next((region_id for region_id in range(1, REGIONS) if region_id not in self.regions), None)
        if region_id is None or not blocks:
            return False  # there is enough translated code; the interpreter executes the rest
        native = self._compiler.load(self._keys.region(self._access.key, blocks), text, "region")
        heads = tuple(pc for pc, _, _ in blocks)
        self.regions[region_id] = TranslatedRegion(native, heads, frozenset(addresses_of(blocks)), tuple(block_images))
        self._functions[region_id] = native.address("region")
        for index, head in enumerate(heads):
            self._entries.enter(head, region_id, index)
        for old_id, region in tuple(self.regions.items()):
            if all(self._entries.region(head) != old_id for head in region.heads):
                del self.regions[old_id]
        return True

    def _block_image(self, block: BasicBlock) -> BlockImage:
        size = sum(instruction.length for _, instruction in block.instructions)
        return BlockImage(block.pc, size, crc32(self._core.bus.peek(block.pc, size) or b""))


def _size(blocks: Sequence[BasicBlock]) -> int:
    return sum(len(block.instructions) for block in blocks)
