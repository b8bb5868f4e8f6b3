"""QConfig: how wide weights and keys and values are (docs/bit-widths.md, R3, R6, R9, R10, R14).

One object says it: the pass `quantization` gives weights their type, and bytes, traffic and the rates of the engines
follow from the type.

| key | value |
|---|---|
| qbits_weight_default | bits of constant weights: 2, 4, 8 quantize them; 16, 32 and no key leave them as they are |
| qbits_kv_default | bits of keys and values of built-in models, 4 |
| override.layer_<i>.weight, .kv | of the i-th product with constant weights, of the i-th decoder layer |
| override.layer_<i>.head_<j>.kv | of one head; before its layer, which is before the default |
| bitwidths.weight, .activation, .kv | the widths that a file may use |
| packing.mode | logical, packed_rows: as many bits as there are; unpacked_byte: a byte per element below 8 bits |
| packing.use_packed_int4, .use_packed_int2 | the same in the words of the plan; false does not change sizes |
| alignment.default_alignment_bytes, .weight_alignment_bytes, .kv_alignment_bytes | of tensors in DRAM |
| spm.bank_size_bytes, .num_banks | must be those of the device |
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from npu_device.memory.bitwidth import DEFAULT_ALIGNMENT, PACKINGS, ROLE_ALIGNMENT, ROLE_BITS

KEPT = (16, 32)
"""Widths of weights that mean: as they are."""

_OVERRIDE = re.compile(r"override\.layer_(\d+)(?:\.head_(\d+))?\.(weight|kv)")
_LEAST_ALIGNMENT = 4
"""Bytes of the widest element."""


class QConfigError(Exception):
    """A key or value that cannot be; `key` is its dotted name."""

    def __init__(self, key: str, rule: str) -> None:
        self.key = key
        super().__init__(f"{key}: {rule}")


@dataclass(frozen=True)
class QConfig:
    """See the table above. Without any key nothing is quantized."""

    weight: int | None = None
    kv: int = 4
    override: Mapping[str, int] = field(default_factory=dict)
    """`layer_3.weight`, `layer_3.kv`, `layer_3.head_2.kv` -> bits."""
    bitwidths: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: dict(ROLE_BITS))
    packing: str = "logical"
    alignment: Mapping[str, int] = field(
        default_factory=lambda: {"default": DEFAULT_ALIGNMENT, **ROLE_ALIGNMENT}
    )  # fmt: skip
    spm: Mapping[str, int] = field(default_factory=dict)

    def weight_bits(self, layer: int) -> int | None:
        """Of the weights of a product; None: as they are."""
        bits = self.override.get(f"layer_{layer}.weight", self.weight)
        return None if bits in KEPT else bits

    def kv_bits(self, layer: int, head: int) -> int:
        """Of the keys and values of a head (R14: head, then layer, then default)."""
        names = (f"layer_{layer}.head_{head}.kv", f"layer_{layer}.kv")
        return next((self.override[name] for name in names if name in self.override), self.kv)

    def alignment_of(self, role: str) -> int:
        """Bytes (R6)."""
        return self.alignment.get(role, self.alignment["default"])

    @property
    def layers_of_weights(self) -> tuple[int, ...]:
        """Products that an override names."""
        found = (re.fullmatch(r"layer_(\d+)\.weight", name) for name in self.override)
        return tuple(int(match[1]) for match in found if match)


def read_qconfig(values: Mapping[str, Any]) -> QConfig:
    """From values by dotted key. QConfigError: an unknown key, a value that its key cannot have."""
    made = QConfig()
    for key, value in sorted(values.items(), key=lambda item: not item[0].startswith("bitwidths.")):
        read = _KEYS.get(key, _override if key.startswith("override.") else _unknown)
        made = read(made, key, value)
    return made


def _unknown(made: QConfig, key: str, value: Any) -> QConfig:
    raise QConfigError(key, f"no such key; keys are {', '.join(_KEYS)}, override.layer_<i>.weight or .kv")


def _override(made: QConfig, key: str, value: Any) -> QConfig:
    match = _OVERRIDE.fullmatch(key)
    if match is None or (match[2] is not None and match[3] == "weight"):
        raise QConfigError(
            key, "no such override; there are layer_<i>.weight, layer_<i>.kv and layer_<i>.head_<j>.kv, none in time"
        )
    name = key.removeprefix("override.")
    return replace(made, override={**made.override, name: _bits(made, key, match[3], value)})


def _bits(made: QConfig, key: str, role: str, value: Any) -> int:
    allowed = made.bitwidths[role]
    if isinstance(value, bool) or value not in allowed:
        raise QConfigError(key, f"{value} bits: must be one of {', '.join(map(str, allowed))}")
    return int(value)


def _default(role: str) -> "Callable[[QConfig, str, Any], QConfig]":
    def read(made: QConfig, key: str, value: Any) -> QConfig:
        bits = _bits(made, key, role, value)
        return replace(made, weight=bits) if role == "weight" else replace(made, kv=bits)

    return read


def _widths(made: QConfig, key: str, value: Any) -> QConfig:
    role = key.split(".")[1]
    known = ROLE_BITS[role]
    if not isinstance(value, list) or not value or not all(one in known for one in value):
        raise QConfigError(key, f"{value}: must be a list of {', '.join(map(str, known))}")
    return replace(made, bitwidths={**made.bitwidths, role: tuple(value)})


def _packing(made: QConfig, key: str, value: Any) -> QConfig:
    if value not in PACKINGS:
        raise QConfigError(key, f"{value}: must be one of {', '.join(PACKINGS)}")
    return replace(made, packing=value)


def _packed(made: QConfig, key: str, value: Any) -> QConfig:
    if not isinstance(value, bool):
        raise QConfigError(key, f"{value}: must be true or false")
    return made


def _alignment(made: QConfig, key: str, value: Any) -> QConfig:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < _LEAST_ALIGNMENT or value & (value - 1):
        raise QConfigError(key, f"{value}: must be a power of two of at least {_LEAST_ALIGNMENT} bytes")
    role = key.split(".")[1].removesuffix("_alignment_bytes")
    return replace(made, alignment={**made.alignment, role: value})


def _scratchpad(made: QConfig, key: str, value: Any) -> QConfig:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise QConfigError(key, f"{value}: must be a whole number above 0")
    return replace(made, spm={**made.spm, key.split(".")[1]: value})


_KEYS: dict[str, Callable[[QConfig, str, Any], QConfig]] = {
    "qbits_weight_default": _default("weight"),
    "qbits_kv_default": _default("kv"),
    **{f"bitwidths.{role}": _widths for role in ROLE_BITS},
    "packing.mode": _packing,
    "packing.use_packed_int4": _packed,
    "packing.use_packed_int2": _packed,
    **{f"alignment.{role}_alignment_bytes": _alignment for role in ("default", *ROLE_ALIGNMENT)},
    "spm.bank_size_bytes": _scratchpad,
    "spm.num_banks": _scratchpad,
}
"""Keys that are not overrides."""
