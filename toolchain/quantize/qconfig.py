"""QConfig: bit widths of weights, keys and values, and activations (docs/bit-widths.md, R3, R6, R9, R10, R14).

The pass `quantization` sets the types of weights; bytes, traffic and the rates of the engines follow from the types.

| key | value |
|---|---|
| qbits_weight_default | bits of constant weights: 2, 4, 8 quantize them; 16, 32 or no key leave them unchanged |
| qbits_weight_default: vq | vector quantization (docs/quantization.md, "Vector quantization") |
| group_size | rows of a weight matrix that share a scale per column: 32, 64, 128; 0: all rows |
| rounding | of 4- and 2-bit weights: nearest, the default, or gptq, with inputs of --calibration |
| vq.codebooks, .seed | per product with such weights; .d, .codebook_bits: 8, as on the device |
| qbits_kv_default | bits of keys and values of built-in models, 4 |
| qbits_activation_default | bits of activations: 32, 16, 8 of an ONNX model are --precision fp32, fp16, int8 |
| override.layer_<i>.weight, .kv | of the i-th product with constant weights, of the i-th decoder layer |
| override.layer_<i>.activation | 16 or 32 keep the i-th product with constant weights out of int8 |
| override.layer_<i>.head_<j>.kv | of one head; it overrides that of its layer, which overrides the default |
| bitwidths.weight, .activation, .kv | the widths that a file may use |
| layer_<i>... | the same as override.layer_<i>... |
| packing.mode | packed_rows: each row padded to a byte, the default; logical: refused if a row needs padding; |
| | unpacked_byte: a byte per element below 8 bits |
| packing.use_packed_int4, .use_packed_int2 | true: packed_rows, and engines unpack such operands (npu.te.unpack_int4) |
| alignment.default_alignment_bytes, .weight_alignment_bytes, .kv_alignment_bytes | of tensors in DRAM, and of the |
| | accesses that move them; without a key 32, 64, 64, and accesses of dma.alignment |
| kv.pad_rows | true: rows of keys and values that do not end at a byte are padded, else refused |
| spm.bank_size_bytes, .num_banks | must be those of the device |
"""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from npu_device.abi.opcodes import VQ_VECTOR
from npu_device.memory.bitwidth import PACKINGS, ROLE_ALIGNMENT, ROLE_BITS
from toolchain.errors import ModelError
from toolchain.quantize.codebook import VQ_BITS, VectorQuantization

VQ = "vq"
"""Vector quantization as a width of weights: VQ_BITS per element, and codebooks."""
NEAREST, GPTQ = ROUNDINGS = ("nearest", "gptq")
"""Rounding of each weight to its nearest code, or by `toolchain.quantize.gptq`."""
FLOAT_BITS = (16, 32)
"""Widths of weights that leave them unchanged."""

_OVERRIDE = re.compile(r"(?:override\.)?layer_(\d+)(?:\.head_(\d+))?\.(weight|activation|kv)")
_ACTIVATION = "qbits_activation_default"
_PRECISION = {32: ("fp32",), 16: ("fp16", "bf16"), 8: ("int8", "fp8", "fp8_e4m3fn", "fp8_e5m2")}
"""Bits of activations -> conversions of a model (`toolchain.quantize.precision`)."""
_MIN_ALIGNMENT = 4
"""Minimum alignment, bytes: that of the widest element."""


class QConfigError(Exception):
    """Invalid key or value; `key` is its dotted name. Code, field and value as in docs/bit-widths.md, R25."""

    def __init__(self, key: str, rule: str, code: str = "E_QCONFIG", value: object = None) -> None:
        self.key = self.field = key
        self.code, self.value = code, value
        super().__init__(f"{key}: {rule}")


@dataclass(frozen=True)
class QConfig:
    """Configuration as in the table above. Without keys nothing is quantized."""

    weight: int | None = None
    activation: int | None = None
    group: int = 0
    """Number of weight rows that share scales per column; 0 for all."""
    rounding: str = NEAREST
    """Method of `ROUNDINGS` for weights of 4 and 2 bits."""
    kv: int = 4
    kv_named: bool = False
    """Whether qbits_kv_default is set; without it a decoder with values keeps the type of its model."""
    override: Mapping[str, int] = field(default_factory=dict)
    """`layer_3.weight`, `layer_3.kv`, `layer_3.head_2.kv` -> bits."""
    bitwidths: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: dict(ROLE_BITS))
    packing: str = ""
    """packing.mode; empty if unset."""
    packed: Mapping[int, bool] = field(default_factory=dict)
    """Bits -> use_packed_int<bits>, if set."""
    alignment: Mapping[str, int] = field(default_factory=dict)
    """`default` and roles -> alignment in bytes, if set."""
    pad_rows: bool = False
    spm: Mapping[str, int] = field(default_factory=dict)
    vectors: VectorQuantization = field(default_factory=VectorQuantization)

    def weight_bits(self, layer: int) -> int | None:
        """Return the bits of a product's weights; None for unchanged."""
        bits = self.override.get(f"layer_{layer}.weight", self.weight)
        return None if bits in FLOAT_BITS else bits

    def kv_bits(self, layer: int, head: int) -> int:
        """Return the bits of a head's keys and values (R14: head, then layer, then default)."""
        names = (f"layer_{layer}.head_{head}.kv", f"layer_{layer}.kv")
        return next((self.override[name] for name in names if name in self.override), self.kv)

    @property
    def names_caches(self) -> bool:
        """Whether a key sets the width of keys and values."""
        return self.kv_named or any(name.endswith(".kv") for name in self.override)

    def cache_bits(self, layer: int, head: int) -> int | None:
        """Return the bits as `kv_bits`, for a decoder with values; None for the model's type, if no key is set."""
        named = {f"layer_{layer}.head_{head}.kv", f"layer_{layer}.kv"} & self.override.keys()
        return self.kv_bits(layer, head) if named or self.kv_named else None

    def alignment_of(self, role: str) -> int | None:
        """Return the alignment and access granularity of tensors of a role, bytes (R6); None if no key is set."""
        return self.alignment.get(role, None if role in ROLE_ALIGNMENT else self.alignment.get("default"))

    def product_activation(self, layer: int) -> int | None:
        """Return the activation bits of a product with constant weights; None if no key is set."""
        return self.override.get(f"layer_{layer}.activation", self.activation)

    def precision(self, precision_name: str) -> str:
        """Return the conversion of an ONNX model requested by `--precision` or the width of activations. QConfigError:
        they contradict each other, or no kernel supports such activations."""
        if self.activation is None:
            return self._overridden(precision_name)
        fitting = _PRECISION.get(self.activation)
        if fitting is None:
            raise QConfigError(
                _ACTIVATION, f"{self.activation} bits: products of an ONNX model take 8, 16 or 32", "E_QBITS",
                self.activation,
            )  # fmt: skip
        if precision_name and precision_name not in fitting:
            raise QConfigError(
                _ACTIVATION, f"{self.activation} bits are --precision {' or '.join(fitting)}, not {precision_name}",
                "E_QBITS", self.activation,
            )  # fmt: skip
        return self._overridden(precision_name or fitting[0])

    def _overridden(self, precision: str) -> str:
        """Return the precision, which must be int8 if overrides of activations exist."""
        for number, bits in self.overrides("activation").items():
            key = f"override.layer_{number}.activation"
            if precision != "int8":
                raise QConfigError(key, f"{bits} bits: layers differ under int8, set {_ACTIVATION}: 8", "E_QBITS", bits)
            if bits not in (8, *FLOAT_BITS):
                raise QConfigError(key, f"{bits} bits: products of an ONNX model take 8, 16 or 32", "E_QBITS", bits)
        return precision

    def without_weights(self) -> "QConfig":
        """Return the configuration for layers whose weights have their type: packing, alignment and scratchpad."""
        return replace(self, weight=None, override={})

    def overrides(self, role: str) -> dict[int, int]:
        """Return the layers with an override for a role, and its bits."""
        matches = (re.fullmatch(rf"layer_(\d+)\.{role}", name) for name in self.override)
        return {int(match[1]): self.override[match[0]] for match in matches if match}

    def check_overrides(self, role: str, count: int) -> None:
        """Check that the model has the products with an override for a role. ModelError: it has `count`."""
        for number in self.overrides(role):
            if number >= count:
                raise ModelError(
                    f"QConfig override.layer_{number}.{role}: the model has {count} products with constant weights, "
                    f"layer_0 to layer_{count - 1}"
                )


Reader = Callable[[QConfig, str, Any], QConfig]
"""Function that adds the value of a key to a configuration. QConfigError: invalid value."""


def read_qconfig(values: Mapping[str, Any]) -> QConfig:
    """Read values by dotted key. QConfigError: an unknown key, or an invalid value."""
    config = QConfig()
    for key, value in sorted(values.items(), key=lambda item: not item[0].startswith("bitwidths.")):
        read = _KEYS.get(key, _override if key.startswith(("override.", "layer_")) else _unknown)
        config = read(config, key, value)
    for bits, packed in config.packed.items():
        if packed and config.packing in ("logical", "unpacked_byte"):
            rule = f"true: packing.mode is {config.packing}, drop one of them"
            raise QConfigError(f"packing.use_packed_int{bits}", rule, "E_PACK", value=True)
    widths = {config.weight, *config.overrides("weight").values()}
    if config.group and widths.isdisjoint((2, 4, 8)):
        rule = "no weights have 8, 4 or 2 bits: qbits_weight_default: 4, or override.layer_<i>.weight"
        raise QConfigError("group_size", rule, "E_GROUP", config.group)
    if config.rounding == GPTQ and widths.isdisjoint((2, 4)):
        rule = f"{GPTQ}: no weights have 4 or 2 bits: qbits_weight_default: 4, or override.layer_<i>.weight"
        raise QConfigError("rounding", rule, "E_ROUNDING", config.rounding)
    if VQ_BITS not in (config.weight, *config.override.values()):
        for key in (key for key in values if key.startswith(f"{VQ}.")):
            raise QConfigError(key, f"no weights are {VQ}: qbits_weight_default: {VQ}, or override.layer_<i>.weight")
    return config


def _unknown(config: QConfig, key: str, value: Any) -> QConfig:
    raise QConfigError(
        key, f"no such key; keys are {', '.join(_KEYS)}, override.layer_<i>.weight, .activation or .kv", "E_KEY", value
    )


def _override(config: QConfig, key: str, value: Any) -> QConfig:
    match = _OVERRIDE.fullmatch(key)
    if match is None or (match[2] is not None and match[3] != "kv"):
        forms = "layer_<i>.weight, layer_<i>.activation, layer_<i>.kv and layer_<i>.head_<j>.kv"
        raise QConfigError(key, f"no such override; there are {forms}, none in time", "E_KEY", value)
    name = key.removeprefix("override.")
    if name in config.override:
        raise QConfigError(key, f"{name} is given twice, below override and without; drop one", "E_KEY", value)
    return replace(config, override={**config.override, name: _bits(config, key, match[3], value)})


def _bits(config: QConfig, key: str, role: str, value: Any) -> int:
    if role == "weight" and value == VQ:
        return VQ_BITS
    allowed = config.bitwidths[role]
    if isinstance(value, bool) or value not in allowed:
        raise QConfigError(key, f"{value} bits: must be one of {', '.join(map(str, allowed))}", "E_QBITS", value)
    return int(value)


def _default(role: str) -> Reader:
    def read(config: QConfig, key: str, value: Any) -> QConfig:
        bits: dict[str, Any] = {role: _bits(config, key, role, value)}
        return replace(config, **bits, kv_named=config.kv_named or role == "kv")

    return read


def _widths(config: QConfig, key: str, value: Any) -> QConfig:
    role = key.split(".")[1]
    widths = ROLE_BITS[role]
    if not isinstance(value, list) or not value or not all(width in widths for width in value):
        raise QConfigError(key, f"{value}: must be a list of {', '.join(map(str, widths))}")
    return replace(config, bitwidths={**config.bitwidths, role: tuple(value)})


def _checked(field: str, valid: Callable[[Any], bool], rule: str, code: str, entry: Hashable = None) -> Reader:
    """Return the reader of a value for a field, or for an entry of it."""

    def read(config: QConfig, key: str, value: Any) -> QConfig:
        if not valid(value):
            raise QConfigError(key, f"{value}: must be {rule}", code, value)
        change: dict[str, Any] = {field: value if entry is None else {**getattr(config, field), entry: value}}
        return replace(config, **change)

    return read


def _choice(field: str, values: Sequence[int | str], code: str) -> Reader:
    rule = f"one of {', '.join(map(str, values))}"
    return _checked(field, lambda value: not isinstance(value, bool) and value in values, rule, code)


def _flag(field: str, entry: Hashable = None) -> Reader:
    return _checked(field, lambda value: isinstance(value, bool), "true or false", "E_PACK", entry)


def _is_integer(value: Any, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _alignment(role: str) -> Reader:
    rule = f"a power of two of at least {_MIN_ALIGNMENT} bytes"
    return _checked("alignment", lambda value: _is_integer(value, _MIN_ALIGNMENT) and not value & (value - 1), rule,
                    "E_ALIGN", role)  # fmt: skip


def _scratchpad(name: str) -> Reader:
    return _checked("spm", lambda value: _is_integer(value, 1), "a whole number above 0", "E_BANK", name)


def _vectors(config: QConfig, key: str, value: Any) -> QConfig:
    name = key.split(".")[1]
    low, high = _VECTORS[name]
    if not _is_integer(value, low) or value > high:
        rule = f"must be {low}, the device has no other" if low == high else f"must be a whole number {low}..{high}"
        raise QConfigError(key, f"{value}: {rule}")
    return replace(config, vectors=config.vectors._replace(**{name: value})) if low < high else config


GROUPS = (0, 32, 64, 128)
"""Values of group_size."""
_VECTORS = {"d": (VQ_VECTOR, VQ_VECTOR), "codebook_bits": (8, 8), "codebooks": (1, 1024), "seed": (0, (1 << 32) - 1)}
"""Keys of vq -> minimum and maximum value."""

_KEYS: dict[str, Reader] = {
    "qbits_weight_default": _default("weight"),
    _ACTIVATION: _default("activation"),
    "qbits_kv_default": _default("kv"),
    "group_size": _choice("group", GROUPS, "E_GROUP"),
    "rounding": _choice("rounding", ROUNDINGS, "E_ROUNDING"),
    **{f"bitwidths.{role}": _widths for role in ROLE_BITS},
    "packing.mode": _choice("packing", PACKINGS, "E_PACK"),
    **{f"packing.use_packed_int{bits}": _flag("packed", bits) for bits in (4, 2)},
    **{f"alignment.{role}_alignment_bytes": _alignment(role) for role in ("default", *ROLE_ALIGNMENT)},
    "kv.pad_rows": _flag("pad_rows"),
    **{f"spm.{name}": _scratchpad(name) for name in ("bank_size_bytes", "num_banks")},
    **{f"{VQ}.{name}": _vectors for name in _VECTORS},
}
"""Keys that are not overrides."""
