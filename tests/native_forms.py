"""Engines under test, and forms that force native execution in `fast` of programs too short for it.

Closures, native interpreter and translated code must yield the same results.
"""

from typing import NamedTuple

import pytest

TRANSLATED, INTERPRETED, EARLY = "translated", "interpreted", "early"


class Form(NamedTuple):
    """Engine by its name in `pyv_ext.cores`, and the native code that it must use."""

    engine: str
    native: str = ""
    """`TRANSLATED`: every block, from its first execution; `INTERPRETED`: only the native interpreter; `EARLY`: native
    code from the first instruction, with low translation thresholds; "": defaults."""

    def __str__(self) -> str:
        return f"{self.engine}-{self.native}" if self.native else self.engine

    def choose(self, patch: pytest.MonkeyPatch) -> None:
        """Apply this form to new engines until `patch` is undone."""
        if not self.native:
            return
        from pyv_ext.engines.fast import engine, entries, space
        from pyv_ext.engines.persistent import profile_image

        patch.setattr(engine, "WARM_UP", 0)
        patch.setattr(profile_image, "MAX_STORES", 0)  # tests must not reuse translations of other tests
        if self.native == EARLY:
            patch.setattr(space, "HOT", 64)
            patch.setattr(space, "WARM", 1)
            return
        if self.native == INTERPRETED:
            patch.setattr(space.TranslationCache, "translate", lambda self, pc: False)
            return
        original = space.TranslationCache._instruction_at

        def known(self: space.TranslationCache, pc: int) -> object:
            """Return the instruction, decoded if it has not been executed yet."""
            if self._entries.operation(pc) == entries.UNKNOWN:
                self._decode(pc)
            return original(self, pc)

        patch.setattr(space, "HOT", 1)
        patch.setattr(space, "WARM", 0)
        patch.setattr(space.TranslationCache, "_instruction_at", known)


NATIVE_FORMS = (Form("fast", TRANSLATED), Form("fast", INTERPRETED))
FORMS = (Form("reference"), Form("fast"), *NATIVE_FORMS)
