"""What an illegal word would be, for messages."""

from pyv_ext.isa.instruction_set import EXTENSIONS, TOGETHER, Isa


def meaning(isa: Isa, word: int) -> str:
    """The assembly text of a word that a hart with `isa` has found illegal, and the extension that `isa` lacks for it.

    A word that `isa` decodes is illegal for what it asks for: a CSR that does not exist or that the privilege mode may
    not access, an instruction of a higher mode, floating point that is off. Empty for a word without a meaning.
    """
    instruction = isa.decode(word)
    lacks = ""
    if instruction is None:
        letters = "".join(name for name in EXTENSIONS if len(name) == 1)
        whole = Isa("_".join((f"rv32{letters}", *(name for name in EXTENSIONS if len(name) > 1))))
        instruction = whole.decode(word)
        if instruction is None:
            return ""
        extension = next(name for name, rows in EXTENSIONS.items() if instruction.row in rows)
        parts = list(TOGETHER[extension]) if extension in TOGETHER else [extension]
        missing = [name for name in parts if name not in isa.extensions]
        lacks = f": extension {' and '.join(missing)}, which {isa.name} lacks"
        isa = whole
    # relative to 0: a jump shows its distance
    return " ".join(isa.disassemble(word, 0).split()) + lacks
