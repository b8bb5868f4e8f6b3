"""The engines of tests, and the forms in which `fast` executes short programs that it would leave to closures.

Which of closures, native interpreter and translations executes an instruction must change nothing.
"""

from typing import NamedTuple

import pytest

TRANSLATED, INTERPRETED, EARLY = "translated", "interpreted", "early"


class Form(NamedTuple):
    """An engine by its name in `pyv_ext.cores`, and which native code it is made to run."""

    engine: str
    native: str = ""
    """`TRANSLATED`: every block, from the first time on; `INTERPRETED`: the native interpreter and nothing else;
    `EARLY`: as shipped, but from the first instruction on, and with translations soon; else as shipped."""

    def __str__(self) -> str:
        return f"{self.engine}-{self.native}" if self.native else self.engine

    def choose(self, patch: pytest.MonkeyPatch) -> None:
        """Let engines that are made from now on, and as long as `patch` holds, be of this form."""
        if not self.native:
            return
        from pyv_ext.engines.fast import engine, entries, space
        from pyv_ext.engines.persistent import profile_image

        patch.setattr(engine, "WARM_UP", 0)
        patch.setattr(profile_image, "MAX_STORES", 0)  # no test begins with what another has translated
        if self.native == EARLY:
            patch.setattr(space, "HOT", 64)
            patch.setattr(space, "WARM", 1)
            return
        if self.native == INTERPRETED:
            patch.setattr(space.TranslationCache, "translate", lambda self, pc: False)
            return
        original = space.TranslationCache._instruction_at

        def known(self: space.TranslationCache, pc: int) -> object:
            """Decodes what has not been executed yet."""
            if self._entries.operation(pc) == entries.UNKNOWN:
                self._decode(pc)
            return original(self, pc)

        patch.setattr(space, "HOT", 1)
        patch.setattr(space, "WARM", 0)
        patch.setattr(space.TranslationCache, "_instruction_at", known)


NATIVE_FORMS = (Form("fast", TRANSLATED), Form("fast", INTERPRETED))
FORMS = (Form("reference"), Form("fast"), *NATIVE_FORMS)
