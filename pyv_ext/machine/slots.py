"""Word indices of `Hart.x`, which holds `HartState`, for generated code and closures.

x0..x31 have the words 0..31, f0..f31 those from `pyv_ext.isa.formats.F0` on.
"""

from typing import Final

from pyv_ext.machine.state import HartState
from pyv_native.records import layout


def _word(name: str) -> int:
    return layout(HartState).fields[name].word


SINK: Final = 32
"""Takes what is written to x0, so that x0 stays 0."""
PC, CYCLE, INSTRET = map(_word, ("pc", "cycle", "instret"))
FFLAGS, FRM, FS, MIE, MIP, MCAUSE = map(_word, ("fflags", "frm", "fs", "mie", "mip", "mcause"))
PRIV, GUARDED, CONTEXT, CONTEXT_CHANGED = map(_word, ("priv", "guarded", "context", "context_changed"))
PMP_WRITES, SPACES, SPACES_AT = map(_word, ("pmp_writes", "spaces", "spaces_at"))
READABLE, WRITABLE = _word("read_low"), _word("write_low")
"""The first of two words: the range of loads, and of stores, that PMP has permitted last."""
