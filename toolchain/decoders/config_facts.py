"""Decoder shapes from a Hugging Face config.json, or from the fields of `Shape` by name (docs/llm.md, "Any
decoder")."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from toolchain.decoders.shapes import LEARNED_OFFSET, MAX_HEADS, Shape
from toolchain.errors import ModelError, did_you_mean

MODEL_TYPE = "model_type"
MAX_VALUE = 1 << 31
UNUSED = frozenset((
    "architectures", "attention_dropout", "attention_multiplier", "_attn_implementation", "attn_logit_softcapping",
    "attn_pdrop", "auto_map", "aux_loss_alpha", "bos_token_id", "cache_implementation", "chunk_size_feed_forward",
    "classifier_dropout", "dtype", "embd_pdrop", "embedding_dropout", "embedding_multiplier", "eos_token_id", "ep_size",
    "final_logit_softcapping", "hidden_dropout", "id2label", "initializer_range", "input_jitter_noise", "is_decoder",
    "is_llama_config", "label2id", "layer_norm_eps", "layer_norm_epsilon", "logit_scale", "logits_scaling",
    "max_position_embeddings", "max_window_layers", "model_type", "n_group", "_name_or_path", "name_or_path",
    "norm_epsilon", "norm_topk_prob", "num_nextn_predict_layers", "original_max_position_embeddings",
    "output_attentions", "output_hidden_states", "output_router_logits", "pad_token_id", "pretraining_tp",
    "problem_type", "qk_head_dim", "quantization_config", "query_pre_attn_scalar", "resid_pdrop", "residual_dropout",
    "residual_multiplier", "return_dict", "rms_norm_eps", "rope_interleave", "rope_interleaved", "rope_local_base_freq",
    "rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base", "routed_scaling_factor", "router_aux_loss_coef",
    "router_jitter_noise", "scoring_func", "seq_aux", "_sliding_window_pattern", "topk_group", "topk_method",
    "torch_dtype", "transformers_version", "use_cache", "use_mrope",
))  # fmt: skip
"""Fields that affect neither sizes nor commands."""
FIXED: Mapping[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,), "attention_bias": (False,), "decoder_sparse_step": (1,),
    "is_encoder_decoder": (False,), "mlp_bias": (False,), "mlp_only_layers": ([], None), "mlp_type": ("default",),
    "moe_layer_freq": (1,), "norm_type": ("layer_norm",), "qk_layernorm": (False,),
    "use_bidirectional_attention": (False, None), "use_qk_norm": (False,),
}  # fmt: skip
"""Fields that some families ignore -> the only values accepted there, which have no effect."""
WINDOWED, FULL = "sliding_attention", "full_attention"
"""Values of `layer_types`."""
FIELDS = {
    "layers": "num_hidden_layers", "heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size", "vocab": "vocab_size", "width": "hidden_size", "active": "num_experts_per_tok",
    "dense_layers": "first_k_dense_replace", "latent": "kv_lora_rank", "latent_rotary": "qk_rope_head_dim",
    "value_dim": "v_head_dim", "query_latent": "q_lora_rank",
}  # fmt: skip
"""Field of a shape -> field of a configuration."""
ACTIVATIONS = {
    "silu": "SILU", "swish": "SILU", "relu": "RELU", "gelu": "GELU", "gelu_new": "GELU_TANH",
    "gelu_pytorch_tanh": "GELU_TANH", "gelu_fast": "GELU_TANH",
}  # fmt: skip


class ConfigFields:
    """Fields of a config.json, with a record of the names read."""

    def __init__(self, data: Mapping[str, Any], origin: str) -> None:
        self.data, self.origin, self.read_names = data, origin, set[str]()

    def number(self, name: str, otherwise: int | None = None, minimum: int = 1) -> int:
        """Return an integer field. ModelError: the field is missing or out of range."""
        self.read_names.add(name)
        value = self.data.get(name)
        if value is None:
            if otherwise is None:
                raise ModelError(f"{self.origin}: {name}: is missing, a {self.data[MODEL_TYPE]} has it")
            return otherwise
        if type(value) is not int or not minimum <= value < MAX_VALUE:
            raise ModelError(
                f"{self.origin}: {name} {value!r}: must be a whole number from {minimum} to {MAX_VALUE - 1}"
            )
        return value

    def rotary(self, head_dim: int) -> int:
        """Return the elements of a head with rotary positions; 0 for all. ModelError: the share is not in (0, 1], or
        the count is odd."""
        rope = self.data.get("rope_parameters")
        values = {**(rope if isinstance(rope, Mapping) else {}), **self.data}
        for name in ("rotary_pct", "partial_rotary_factor"):
            self.read_names.add(name)
            share = values.get(name)
            if share is None:
                continue
            if type(share) not in (int, float) or not 0 < share <= 1:
                raise ModelError(f"{self.origin}: {name} {share!r}: must be above 0, at most 1")
            turned = int(share * head_dim)
            if turned < 2 or turned % 2:
                raise ModelError(
                    f"{self.origin}: {name} {share}: makes {turned} of the {head_dim} elements of a head: must be even"
                )
            return 0 if turned == head_dim else turned
        return 0

    def window(self, *, whole_every: int = 0, otherwise: int = 0) -> dict[str, int]:
        """Return the sliding window and the period of layers without one, by default `whole_every`. ModelError: a shape
        cannot express the layers."""
        window = self.number("sliding_window", otherwise=otherwise, minimum=0)
        self.read_names.add("layer_types")
        whole_every = self.number("sliding_window_pattern", otherwise=whole_every)
        layers, kinds = self.number("num_hidden_layers"), self.data.get("layer_types")
        if kinds is None:
            return {"window": window, "whole_every": whole_every if window else 0}
        if not (isinstance(kinds, list) and set(map(str, kinds)) <= {WINDOWED, FULL} and len(kinds) == layers):
            raise ModelError(f"{self.origin}: layer_types: must be {layers} of {WINDOWED} and {FULL}")
        if WINDOWED not in kinds:
            return {}
        if not window:
            raise ModelError(f"{self.origin}: sliding_window: is missing, layer_types has {WINDOWED}")
        period = kinds.index(FULL) + 1 if FULL in kinds else 0
        if period == 1 or any((kind == FULL) is not (at % period == 0) for at, kind in enumerate(kinds, 1) if period):
            raise ModelError(f"{self.origin}: layer_types: {FULL} must be in every N-th layer, N from 2 on")
        return {"window": window, "whole_every": period}

    def flag(self, name: str, otherwise: bool = False) -> bool:
        """Return a boolean field. ModelError: it is neither true nor false."""
        self.read_names.add(name)
        value = self.data.get(name)
        if value is None:
            return otherwise
        if not isinstance(value, bool):
            raise ModelError(f"{self.origin}: {name} {value!r}: must be true or false")
        return value

    def activation(self, *names: str, otherwise: str = "silu") -> str:
        """Return the device's name of the activation. ModelError: the device does not support it."""
        self.read_names.update(names)
        name = next((name for name in names if self.data.get(name) is not None), names[0])
        value = self.data.get(name)
        value = otherwise if value is None else value
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise ModelError(f"{self.origin}: {name} {value!r}: must be one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    def check(self) -> None:
        """Raise ModelError for unknown fields."""
        for name in sorted((set(self.data) - self.read_names) & set(FIXED)):
            if self.data[name] not in FIXED[name]:
                raise ModelError(
                    f"{self.origin}: {name} {self.data[name]!r}: must be {FIXED[name][0]!r} of a "
                    f"{self.data[MODEL_TYPE]}"
                )
        unknown = sorted(set(self.data) - self.read_names - UNUSED - set(FIXED))
        if unknown:
            hint = did_you_mean(unknown[0], [*self.read_names, *UNUSED])
            raise ModelError(
                f"{self.origin}: {', '.join(unknown)}: not known of {MODEL_TYPE} {self.data[MODEL_TYPE]}{hint}; remove "
                "it, or describe the model in YAML (pyv-npu docs llm)"
            )


def _common(c: ConfigFields, activation: str = "silu") -> dict[str, Any]:
    """Return the fields that configurations of most families share. `activation`: default if the file names none."""
    width, heads = c.number("hidden_size"), c.number("num_attention_heads")
    if c.data.get("head_dim") is None and width % heads:
        raise ModelError(
            f"{c.origin}: hidden_size {width}: must be a multiple of num_attention_heads {heads}, or head_dim be there"
        )
    head_dim = c.number("head_dim", otherwise=width // heads)
    return {
        "layers": c.number("num_hidden_layers"), "width": width, "heads": heads,
        "kv_heads": c.number("num_key_value_heads", otherwise=heads), "head_dim": head_dim,
        "ffn": c.number("intermediate_size"), "vocab": c.number("vocab_size"), "rotary": c.rotary(head_dim),
        "tied": c.flag("tie_word_embeddings"), "activation": c.activation("hidden_act", otherwise=activation),
    }  # fmt: skip


def _attention_bias(c: ConfigFields, otherwise: bool = False) -> dict[str, Any]:
    return dict.fromkeys(("qkv_bias", "output_bias"), c.flag("attention_bias", otherwise))


def _experts(c: ConfigFields) -> dict[str, Any]:
    count = "num_experts" if "num_experts" in c.data else "num_local_experts"
    ffn = c.number("moe_intermediate_size", otherwise=c.number("intermediate_size"))
    return {"experts": c.number(count), "active": c.number("num_experts_per_tok"), "ffn": ffn}


def _llama(c: ConfigFields) -> dict[str, Any]:
    return _common(c) | _attention_bias(c) | {"ffn_bias": c.flag("mlp_bias")}


def _mistral(c: ConfigFields) -> dict[str, Any]:
    return _common(c) | c.window()


def _mixtral(c: ConfigFields) -> dict[str, Any]:
    return _mistral(c) | _experts(c)


def _phimoe(c: ConfigFields) -> dict[str, Any]:
    return _mixtral(c) | _attention_bias(c) | {"norm": "LAYER", "head_bias": c.flag("lm_head_bias")}


def _starcoder2(c: ConfigFields) -> dict[str, Any]:
    biases = dict.fromkeys(("qkv_bias", "output_bias", "ffn_bias"), c.flag("use_bias", True))
    return _mistral(c) | biases | {"gated": False, "norm": "LAYER", "tied": c.flag("tie_word_embeddings", True)}


def _stablelm(c: ConfigFields) -> dict[str, Any]:
    parallel = dict.fromkeys(("parallel", "shared_norm"), c.flag("use_parallel_residual"))
    return _common(c) | parallel | {"norm": "LAYER", "qkv_bias": c.flag("use_qkv_bias")}


def _glm(c: ConfigFields) -> dict[str, Any]:
    return _common(c) | {"qkv_bias": c.flag("attention_bias")}


def _cohere(c: ConfigFields) -> dict[str, Any]:
    tied = c.flag("tie_word_embeddings", True)
    return _llama(c) | {"norm": "LAYER", "parallel": True, "shared_norm": True, "tied": tied}


def _qwen2(c: ConfigFields) -> dict[str, Any]:
    facts, window = _common(c) | {"qkv_bias": c.flag("qkv_bias", True)}, c.window()
    if not c.flag("use_sliding_window"):
        return facts
    full_layers = 0 if "layer_types" in c.data else c.number("max_window_layers", otherwise=28, minimum=0)
    if 0 < full_layers < facts["layers"]:
        raise ModelError(
            f"{c.origin}: max_window_layers {full_layers}: must be 0, or num_hidden_layers {facts['layers']} or more: "
            "a shape cannot say that later layers have a window"
        )
    return facts if full_layers else facts | window


def _qwen2_moe(c: ConfigFields) -> dict[str, Any]:
    return _qwen2(c) | _experts(c) | {"shared_ffn": c.number("shared_expert_intermediate_size")}


def _qwen3(c: ConfigFields) -> dict[str, Any]:
    return _qwen2(c) | _attention_bias(c) | {"qk_norm": True}


def _gemma(c: ConfigFields) -> dict[str, Any]:
    activation = c.activation("hidden_activation", "hidden_act", otherwise="gelu_pytorch_tanh")
    facts = {"activation": "GELU_TANH" if activation == "GELU" else activation}
    return _common(c) | _attention_bias(c) | facts | {"tied": c.flag("tie_word_embeddings", True)}


def _gemma2(c: ConfigFields, whole_every: int = 2) -> dict[str, Any]:
    return _gemma(c) | c.window(whole_every=whole_every, otherwise=4096) | {"post_norm": True}


def _phi(c: ConfigFields) -> dict[str, Any]:
    biases = dict.fromkeys(("qkv_bias", "output_bias", "ffn_bias", "head_bias", "parallel", "shared_norm"), True)
    return _common(c, "gelu_new") | biases | {"gated": False, "norm": "LAYER"}


def _gpt_neox(c: ConfigFields) -> dict[str, Any]:
    parallel = {"parallel": c.flag("use_parallel_residual", True)}
    return (
        _common(c, "gelu") | _attention_bias(c, True) | parallel | {"gated": False, "norm": "LAYER", "ffn_bias": True}
    )


def _deepseek(c: ConfigFields) -> dict[str, Any]:
    common, dense = _common(c), c.number("first_k_dense_replace", otherwise=0, minimum=0)
    rope, nope = c.number("qk_rope_head_dim"), c.number("qk_nope_head_dim")
    expert, shared = c.number("moe_intermediate_size"), c.number("n_shared_experts", otherwise=0, minimum=0)
    return common | {
        "head_dim": nope + rope, "latent": c.number("kv_lora_rank"),
        "latent_rotary": rope, "query_latent": c.number("q_lora_rank", otherwise=0),
        "value_dim": c.number("v_head_dim"), "experts": c.number("n_routed_experts"),
        "active": c.number("num_experts_per_tok"), "ffn": expert, "shared_ffn": expert * shared,
        "dense_layers": dense, "dense_ffn": common["ffn"] if dense else 0,
    }  # fmt: skip


FAMILIES: Mapping[str, Callable[[ConfigFields], dict[str, Any]]] = {
    "llama": _llama, "mistral": _mistral, "mixtral": _mixtral, "phi3": _mistral, "qwen2": _qwen2, "qwen3": _qwen3,
    "gemma": _gemma, "gemma2": _gemma2, "gemma3_text": lambda c: _gemma2(c, 6) | {"qk_norm": True}, "phi": _phi,
    "gpt_neox": _gpt_neox, "deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "granite": _llama,
    "granitemoe": lambda c: _llama(c) | _experts(c), "phimoe": _phimoe, "qwen2_moe": _qwen2_moe,
    "qwen3_moe": lambda c: _qwen3(c) | _experts(c), "starcoder2": _starcoder2, "stablelm": _stablelm, "glm": _glm,
    "glm4": lambda c: _glm(c) | {"post_norm": True}, "cohere": _cohere,
    "cohere2": lambda c: _cohere(c) | c.window(whole_every=4, otherwise=4096),
}  # fmt: skip
"""model_type -> function that returns the shape's fields."""


def from_config(data: Mapping[str, Any], name: str, origin: str) -> Shape:
    """Return the shape of a Hugging Face configuration. ModelError: a field is missing, unknown or invalid."""
    family = str(data.get(MODEL_TYPE))
    if family not in FAMILIES:
        hint = did_you_mean(family, FAMILIES)
        raise ModelError(
            f"{origin}: {MODEL_TYPE} {family!r}: must be one of {', '.join(FAMILIES)}{hint}; or describe it in YAML"
        )
    config = ConfigFields(data, origin)
    facts = FAMILIES[family](config)
    config.check()
    return _check(Shape(name, **facts), origin, FIELDS)


def from_facts(data: Mapping[str, Any], name: str, origin: str) -> Shape:
    """Return a shape from its fields by name. ModelError: a field is missing, unknown or invalid."""
    facts = {field.name: field for field in fields(Shape) if field.name != "name"}
    for key, value in data.items():
        if key not in facts:
            raise ModelError(
                f"{origin}: {key}: no fact of a shape{did_you_mean(str(key), facts)}; there are {', '.join(facts)}"
            )
        kind = facts[key].type
        if type(value) is not kind or (type(value) is int and not 0 <= value < MAX_VALUE):
            rule = "a whole number" if kind is int else "true or false" if kind is bool else "a text"
            raise ModelError(f"{origin}: {key} {value!r}: must be {rule}")
    missing = [key for key, field in facts.items() if field.default is MISSING and key not in data]
    if missing:
        raise ModelError(f"{origin}: {', '.join(missing)}: must be there")
    return _check(Shape(name, **data), origin, {})


NEEDS = (
    ("whole_every", "window"), ("dense_layers", "dense_ffn"), ("dense_ffn", "dense_layers"),
    ("dense_layers", "experts"), ("shared_ffn", "experts"), ("shared_norm", "parallel"), ("latent", "latent_rotary"),
    ("latent_rotary", "latent"), ("query_latent", "latent"), ("value_dim", "latent"),
)  # fmt: skip
"""(field, another field that it requires)."""
EXCLUDES = (
    ("positions", "rotary"), ("positions", "latent"), ("parallel", "post_norm"), ("latent", "rotary"),
    ("latent", "qkv_bias"), ("latent", "qk_norm"),
)  # fmt: skip
"""Pairs of mutually exclusive fields."""


def _check(shape: Shape, origin: str, names: Mapping[str, str]) -> Shape:
    """Return the shape. ModelError: fields contradict each other. `names`: field -> its different name in the file."""
    defaults = {field.name: field.default for field in fields(Shape)}

    def text(*facts: str) -> str:
        return ", ".join(f"{names.get(fact, fact)} {getattr(shape, fact)}" for fact in facts)

    positive = "layers", "width", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts", "active"
    for name in positive:
        if getattr(shape, name) < 1:
            raise ModelError(f"{origin}: {text(name)}: must be at least 1")
    overrides = {name for name, value in defaults.items() if getattr(shape, name) != value}
    for name, other in NEEDS:
        if name in overrides and other not in overrides:
            raise ModelError(
                f"{origin}: {text(name)}: says nothing without {names.get(other, other)}; give both or none"
            )
    for name, other in EXCLUDES:
        if {name, other} <= overrides:
            raise ModelError(f"{origin}: {text(name, other)}: no shape has both; drop one")
    rules = (
        (shape.layers * shape.heads <= MAX_HEADS,
         f"{text('layers', 'heads')}: must be at most {MAX_HEADS:,} heads in all"),
        (shape.heads % shape.kv_heads == 0, f"{text('kv_heads')}: must divide {text('heads')}"),
        (shape.active <= shape.experts, f"{text('active')}: must be at most {text('experts')}"),
        (shape.norm in ("RMS", "LAYER"), f"norm {shape.norm}: must be RMS or LAYER"),
        (shape.activation in ACTIVATIONS.values(), f"activation {shape.activation}: must be one of "
         f"{', '.join(dict.fromkeys(ACTIVATIONS.values()))}"),
        (shape.positions == 0 or shape.positions > LEARNED_OFFSET,
         f"{text('positions')}: must be above {LEARNED_OFFSET}, the rows before position 0"),
        (shape.positions or shape.latent or shape.head_dim % 2 == 0,
         f"{text('head_dim')}: must be even, rotary positions turn pairs"),
        (shape.rotary % 2 == 0 and shape.rotary <= shape.head_dim,
         f"{text('rotary')}: must be even, at most {text('head_dim')}"),
        (shape.latent_rotary % 2 == 0 and shape.latent_rotary < shape.head_dim,
         f"{text('latent_rotary')}: must be even, below head_dim {shape.head_dim}"),
        (shape.whole_every != 1, f"{text('whole_every')}: must be 0, or at least 2"),
        (shape.dense_layers <= shape.layers, f"{text('dense_layers')}: must be at most {text('layers')}"),
    )  # fmt: skip
    for holds, rule in rules:
        if not holds:
            raise ModelError(f"{origin}: {rule}")
    return shape


def derive_figures(shape: Shape) -> dict[str, Any]:
    """Return the figures of a shape: parameters, bytes of 16-bit weights, bytes of keys and values per token, and the
    fields that differ from their defaults."""
    return {
        "parameters": shape.parameters, "weight_bytes": shape.weight_bytes(), "kv_bytes_per_token": shape.kv_bytes(1),
        **{field.name: value for field in fields(Shape) if (value := getattr(shape, field.name)) != field.default},
    }  # fmt: skip
