"""Word indices of `Hart.x`, which holds `HartState`, for generated code and closures.

x0..x31 are words 0..31, f0..f31 the words from `pyv_ext.isa.formats.F0` on.
"""

from typing import Any, Final

from pyv_ext.machine.state import HartState
from pyv_native.records import layout


def word_of(name: str) -> int:
    """Return the index of a field of `HartState`."""
    return layout(HartState).fields[name].word


class Word:
    """Attribute of an object with the words `x`: the word of `HartState` with its name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._word = word_of(name)

    def __get__(self, owner: Any, owner_type: type) -> int:
        value: int = owner.x[self._word]
        return value

    def __set__(self, owner: Any, value: int) -> None:
        owner.x[self._word] = value


SINK: Final = 32
"""Word that receives writes to x0, so that x0 stays 0."""
PC, CYCLE, INSTRET = map(word_of, ("pc", "cycle", "instret"))
FFLAGS, FRM, FS, MIE, MIP, MCAUSE = map(word_of, ("fflags", "frm", "fs", "mie", "mip", "mcause"))
PRIV, GUARDED, CONTEXT, CONTEXT_CHANGED = map(word_of, ("priv", "guarded", "context", "context_changed"))
PMP_WRITES, SPACES, SPACES_AT = map(word_of, ("pmp_writes", "spaces", "spaces_at"))
RESERVED_ADDRESS, RESERVED_WORD = map(word_of, ("reserved_address", "reserved_word"))
READABLE, WRITABLE = word_of("read_low"), word_of("write_low")
"""The first of two words: the range of loads, and of stores, that PMP permitted last."""
