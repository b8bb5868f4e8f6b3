"""Integers scattered over an instruction word: the operand fields of the RISC-V formats."""

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Bits:
    """An operand of an instruction word.

    `layout` lists its pieces as in the manual's figures, "high:low@position": bits high..low of the operand stand at
    `position` of the word, counted from bit 0. Bits in no piece are zero. `base` is added to what the word holds
    (the compressed formats name x8..x15 by three bits).
    """

    layout: str
    signed: bool = False
    base: int = 0

    @cached_property
    def _pieces(self) -> tuple[tuple[int, int, int], ...]:
        """(lowest operand bit, bit mask, position in the word) of each piece."""
        pieces = []
        for piece in self.layout.split():
            span, position = piece.split("@")
            high, _, low = span.partition(":")
            first = int(low or high)
            pieces.append((first, (1 << int(high) - first + 1) - 1, int(position)))
        return tuple(pieces)

    @cached_property
    def _sign(self) -> int:
        """The operand's sign bit, or 0."""
        return 1 << max(low + mask.bit_length() - 1 for low, mask, _ in self._pieces) if self.signed else 0

    def extract(self, word: int) -> int:
        """The operand of `word`, sign-extended where it is signed."""
        value = 0
        for low, mask, position in self._pieces:
            value |= (word >> position & mask) << low
        return (value ^ self._sign) - self._sign + self.base

    def insert(self, value: int) -> int:
        """The bits of a word that hold `value`, which must be one that `fits`."""
        word = 0
        for low, mask, position in self._pieces:
            word |= (value - self.base >> low & mask) << position
        return word

    def fits(self, value: int) -> bool:
        """Whether some word holds `value`."""
        return self.extract(self.insert(value)) == value


def fixed(value: int) -> Bits:
    """An operand that the format implies and the word does not hold."""
    return Bits("", base=value)
