"""Shapes of decoders from the fields of a Hugging Face config.json, or from facts of `Shape` by name (docs/llm.md, "Any
decoder")."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from toolchain.decoders.shapes import Shape
from toolchain.errors import ModelError, did_you_mean

MODEL_TYPE = "model_type"
MAX_VALUE = 1 << 31
MAX_HEADS = 1 << 20
"""Heads of all layers together: widths of keys and values are listed head by head."""
UNUSED = frozenset((
    "architectures", "attention_dropout", "attn_pdrop", "auto_map", "bos_token_id", "cache_implementation",
    "classifier_dropout", "dtype", "embd_pdrop", "eos_token_id", "ep_size", "hidden_dropout", "initializer_range",
    "layer_norm_eps", "layer_norm_epsilon", "max_window_layers", "model_type", "name_or_path", "_name_or_path",
    "norm_topk_prob", "original_max_position_embeddings", "output_router_logits", "pad_token_id", "pretraining_tp",
    "quantization_config", "query_pre_attn_scalar", "resid_pdrop", "rms_norm_eps", "rope_interleaved", "rope_scaling",
    "rope_theta", "rotary_emb_base", "router_aux_loss_coef", "routed_scaling_factor", "scoring_func", "seq_aux",
    "topk_group", "topk_method", "n_group", "torch_dtype", "transformers_version", "use_cache",
    "max_position_embeddings", "aux_loss_alpha", "attn_logit_softcapping", "final_logit_softcapping",
    "num_nextn_predict_layers", "is_llama_config", "rope_parameters", "layer_types", "_attn_implementation",
    "use_mrope", "qk_layernorm", "moe_layer_freq",
))  # fmt: skip
"""Fields that change neither sizes nor commands."""
ACTIVATIONS = {
    "silu": "SILU", "swish": "SILU", "relu": "RELU", "gelu": "GELU", "gelu_new": "GELU_TANH",
    "gelu_pytorch_tanh": "GELU_TANH", "gelu_fast": "GELU_TANH",
}  # fmt: skip


class Config:
    """Fields of a config.json; each that is asked for counts as used."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data, self.where, self.used = data, where, set[str]()

    def number(self, *names: str, otherwise: int | None = None, least: int = 1) -> int:
        """A whole number by the first of its names. ModelError: none, another value."""
        for name in names:
            self.used.add(name)
            value = self.data.get(name)
            if value is None:
                continue
            if type(value) is not int or not least <= value < MAX_VALUE:
                raise ModelError(
                    f"{self.where}: {name} {value!r}: must be a whole number from {least} to {MAX_VALUE - 1}"
                )
            return value
        if otherwise is None:
            raise ModelError(f"{self.where}: {names[0]}: is missing, a {self.data[MODEL_TYPE]} has it")
        return otherwise

    def share(self, *names: str) -> float:
        """A share of 1. ModelError: another value."""
        for name in names:
            self.used.add(name)
            value = self.data.get(name)
            if value is not None:
                if not isinstance(value, int | float) or not 0 < value <= 1:
                    raise ModelError(f"{self.where}: {name} {value!r}: must be above 0, at most 1")
                return float(value)
        return 1.0

    def flag(self, name: str, otherwise: bool = False) -> bool:
        """ModelError: neither true nor false."""
        self.used.add(name)
        value = self.data.get(name)
        if value is None:
            return otherwise
        if not isinstance(value, bool):
            raise ModelError(f"{self.where}: {name} {value!r}: must be true or false")
        return value

    def activation(self, *names: str, otherwise: str = "silu") -> str:
        """Name of an activation of the device. ModelError: another."""
        self.used.update(names)
        name = next((name for name in names if self.data.get(name) is not None), names[0])
        value = self.data.get(name, otherwise)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise ModelError(f"{self.where}: {name} {value!r}: must be one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    def check(self) -> None:
        """ModelError for fields that nothing asked for."""
        unknown = sorted(set(self.data) - self.used - UNUSED)
        if unknown:
            hint = did_you_mean(unknown[0], [*self.used, *UNUSED])
            raise ModelError(
                f"{self.where}: {', '.join(unknown)}: not known of {MODEL_TYPE} {self.data[MODEL_TYPE]}{hint}; remove "
                "it, or describe the model in YAML (pyv-npu docs llm)"
            )


def _common(c: Config) -> dict[str, Any]:
    """Facts that configurations of most families name alike."""
    width, heads = c.number("hidden_size"), c.number("num_attention_heads")
    return {
        "layers": c.number("num_hidden_layers"), "width": width, "heads": heads,
        "kv_heads": c.number("num_key_value_heads", otherwise=heads),
        "head_dim": c.number("head_dim", otherwise=width // heads), "ffn": c.number("intermediate_size"),
        "vocab": c.number("vocab_size"), "tied": c.flag("tie_word_embeddings"),
    }  # fmt: skip


def _llama(c: Config) -> dict[str, Any]:
    attention, network = c.flag("attention_bias"), c.flag("mlp_bias")
    return _common(c) | {"activation": c.activation("hidden_act"), "qkv_bias": attention, "output_bias": attention,
                         "ffn_bias": network}  # fmt: skip


def _mistral(c: Config) -> dict[str, Any]:
    window = c.number("sliding_window", otherwise=0, least=0)
    return _common(c) | {"activation": c.activation("hidden_act"), "window": window}


def _mixtral(c: Config) -> dict[str, Any]:
    experts, active = c.number("num_local_experts"), c.number("num_experts_per_tok")
    c.used.add("router_jitter_noise")
    return _mistral(c) | {"experts": experts, "active": active}


def _phi3(c: Config) -> dict[str, Any]:
    facts = _mistral(c)
    rotary = int(c.share("partial_rotary_factor") * facts["head_dim"])
    return facts | {"rotary": 0 if rotary == facts["head_dim"] else rotary}


def _qwen2(c: Config) -> dict[str, Any]:
    window = c.number("sliding_window", otherwise=0, least=0)
    used = c.flag("use_sliding_window")
    return _common(c) | {"activation": c.activation("hidden_act"), "qkv_bias": True, "window": window if used else 0}


def _qwen3(c: Config) -> dict[str, Any]:
    facts, attention = _qwen2(c), c.flag("attention_bias")
    return facts | {"qkv_bias": attention, "output_bias": attention, "qk_norm": True}


def _gemma(c: Config) -> dict[str, Any]:
    facts = _common(c) | {"tied": c.flag("tie_word_embeddings", True), "qkv_bias": c.flag("attention_bias")}
    activation = c.activation("hidden_activation", "hidden_act", otherwise="gelu_pytorch_tanh")
    return facts | {"activation": "GELU_TANH" if activation == "GELU" else activation, "output_bias": facts["qkv_bias"]}


def _gemma2(c: Config) -> dict[str, Any]:
    return _gemma(c) | {"window": c.number("sliding_window", otherwise=4096), "window_every": 2, "post_norm": True}


def _phi(c: Config) -> dict[str, Any]:
    facts = _common(c)
    rotary = int(c.share("partial_rotary_factor") * facts["head_dim"])
    biases = dict.fromkeys(("qkv_bias", "output_bias", "ffn_bias", "head_bias", "parallel", "shared_norm"), True)
    return facts | biases | {"gated": False, "norm": "LAYER", "rotary": rotary,
                             "activation": c.activation("hidden_act", otherwise="gelu_new")}  # fmt: skip


def _gpt_neox(c: Config) -> dict[str, Any]:
    facts, bias = _common(c), c.flag("attention_bias", True)
    rotary = int(c.share("rotary_pct", "partial_rotary_factor") * facts["head_dim"])
    return facts | {
        "gated": False, "norm": "LAYER", "rotary": rotary, "qkv_bias": bias, "output_bias": bias, "ffn_bias": True,
        "parallel": c.flag("use_parallel_residual", True), "activation": c.activation("hidden_act", otherwise="gelu"),
    }  # fmt: skip


def _deepseek(c: Config) -> dict[str, Any]:
    common = _common(c)
    rope, nope = c.number("qk_rope_head_dim"), c.number("qk_nope_head_dim")
    expert, shared = c.number("moe_intermediate_size"), c.number("n_shared_experts", otherwise=0, least=0)
    return common | {
        "activation": c.activation("hidden_act"), "head_dim": nope + rope, "latent": c.number("kv_lora_rank"),
        "latent_rotary": rope, "query_latent": c.number("q_lora_rank", otherwise=0),
        "value_dim": c.number("v_head_dim"), "experts": c.number("n_routed_experts"),
        "active": c.number("num_experts_per_tok"), "ffn": expert, "shared_ffn": expert * shared,
        "dense_layers": c.number("first_k_dense_replace", otherwise=0, least=0), "dense_ffn": common["ffn"],
        "qkv_bias": c.flag("attention_bias"),
    }  # fmt: skip


FAMILIES: Mapping[str, Callable[[Config], dict[str, Any]]] = {
    "llama": _llama, "mistral": _mistral, "mixtral": _mixtral, "phi3": _phi3, "qwen2": _qwen2, "qwen3": _qwen3,
    "gemma": _gemma, "gemma2": _gemma2, "phi": _phi, "gpt_neox": _gpt_neox, "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
}  # fmt: skip
"""model_type -> facts of its configuration."""


def from_config(data: Mapping[str, Any], name: str, where: str) -> Shape:
    """The shape of a Hugging Face configuration. ModelError."""
    family = str(data.get(MODEL_TYPE))
    if family not in FAMILIES:
        hint = did_you_mean(family, FAMILIES)
        raise ModelError(f"{where}: {MODEL_TYPE} {family!r}: must be one of {', '.join(FAMILIES)}{hint}")
    config = Config(data, where)
    facts = FAMILIES[family](config)
    config.check()
    return _checked(Shape(name, **facts), where)


def from_facts(data: Mapping[str, Any], name: str, where: str) -> Shape:
    """The shape of facts by their names in `Shape`. ModelError."""
    known = {field.name: field for field in fields(Shape) if field.name != "name"}
    for key, value in data.items():
        if key not in known:
            raise ModelError(
                f"{where}: {key}: no fact of a shape{did_you_mean(str(key), known)}; there are {', '.join(known)}"
            )
        kind = known[key].type
        if type(value) is not kind or (type(value) is int and not 0 <= value < MAX_VALUE):
            rule = "a whole number" if kind is int else "true or false" if kind is bool else "a text"
            raise ModelError(f"{where}: {key} {value!r}: must be {rule}")
    missing = [key for key, field in known.items() if field.default is MISSING and key not in data]
    if missing:
        raise ModelError(f"{where}: {', '.join(missing)}: must be there")
    return _checked(Shape(name, **data), where)


def _checked(shape: Shape, where: str) -> Shape:
    """ModelError for facts that contradict each other."""
    least = "layers", "width", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts", "active", "window_every"
    for name in least:
        if getattr(shape, name) < 1:
            raise ModelError(f"{where}: {name} {getattr(shape, name)}: must be at least 1")
    rules = (
        (shape.layers * shape.heads <= MAX_HEADS,
         f"layers {shape.layers}, heads {shape.heads}: must be at most {MAX_HEADS:,} heads in all"),
        (shape.heads % shape.kv_heads == 0, f"kv_heads {shape.kv_heads}: must divide heads {shape.heads}"),
        (shape.active <= shape.experts, f"active {shape.active}: must be at most experts {shape.experts}"),
        (shape.norm in ("RMS", "LAYER"), f"norm {shape.norm}: must be RMS or LAYER"),
        (shape.activation in ACTIVATIONS.values(), f"activation {shape.activation}: must be one of "
         f"{', '.join(dict.fromkeys(ACTIVATIONS.values()))}"),
        (shape.rotary % 2 == 0 and shape.rotary <= shape.head_dim,
         f"rotary {shape.rotary}: must be even, at most head_dim {shape.head_dim}"),
        (shape.dense_layers <= shape.layers,
         f"dense_layers {shape.dense_layers}: must be at most layers {shape.layers}"),
        (shape.parallel or not shape.shared_norm, "shared_norm: is of a parallel block; set parallel"),
    )  # fmt: skip
    for holds, rule in rules:
        if not holds:
            raise ModelError(f"{where}: {rule}")
    return shape


def derived(shape: Shape) -> dict[str, Any]:
    """Figures of a shape: parameters, bytes of 16-bit weights, bytes of keys and values of a token, facts."""
    return {
        "parameters": shape.parameters, "weight_bytes": shape.weight_bytes(), "kv_bytes_per_token": shape.kv_bytes(1),
        **{field.name: value for field in fields(Shape) if (value := getattr(shape, field.name)) != field.default},
    }  # fmt: skip
