"""The YAML file of a QConfig (specification 55, R10 and R14; keys: `toolchain.qconfig`)."""

import re
from pathlib import Path

from pyv_npu.config.yaml_file import read_entries
from pyv_npu.errors import BadInputError
from toolchain.qconfig import QConfig, QConfigError, read_qconfig

_SECTION = re.compile(r"bitwidths|packing|alignment|spm|override|(override\.)?layer_\d+(\.(?!kv$|weight$)\w+)?")


class _Sections:
    """Names below which there are keys."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(_SECTION.fullmatch(name))


def load_qconfig(path: Path) -> QConfig:
    """Read a file. BadInputError names its line: no YAML, an unknown key, a value that cannot be."""
    entries = {entry.path: entry for entry in read_entries(path, _Sections())}
    try:
        return read_qconfig({name: entry.value for name, entry in entries.items()})
    except QConfigError as error:
        raise BadInputError(f"{path}:{entries[error.key].line}: {error}") from None
