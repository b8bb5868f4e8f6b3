"""Hugging Face configurations: parameters of published models, families that run, wrong and unknown fields."""

import json
from pathlib import Path
from typing import Any

import pytest

from pyv_npu.cli.main import main
from pyv_npu.config.shape_file import is_shape, shape_of
from pyv_npu.errors import BadInputError
from toolchain.decoders.config_facts import FAMILIES, FULL, WINDOWED, from_config, from_facts
from toolchain.decoders.shapes import MODELS
from toolchain.errors import ModelError


def config(family: str, layers: int, width: int, heads: int, kv: int, ffn: int, vocab: int, **more: Any) -> Any:
    return {
        "model_type": family, "num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads,
        "num_key_value_heads": kv, "intermediate_size": ffn, "vocab_size": vocab, "hidden_act": "silu",
        "torch_dtype": "bfloat16", **more,
    }  # fmt: skip


DEEPSEEK = {
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "kv_lora_rank": 512, "moe_layer_freq": 1,
}  # fmt: skip
PUBLISHED = {
    "llama-2-7b": (config("llama", 32, 4096, 32, 32, 11008, 32000), 6_738_415_616),
    "llama-3-8b": (config("llama", 32, 4096, 32, 8, 14336, 128256), 8_030_261_248),
    "smollm2-135m": (config("llama", 30, 576, 9, 3, 1536, 49152, tie_word_embeddings=True), 134_515_008),
    "mistral-7b": (config("mistral", 32, 4096, 32, 8, 14336, 32000, sliding_window=4096), 7_241_732_096),
    "mixtral-8x7b": (
        config("mixtral", 32, 4096, 32, 8, 14336, 32000, num_local_experts=8, num_experts_per_tok=2), 46_702_792_704
    ),
    "phi-3-mini": (config("phi3", 32, 3072, 32, 32, 8192, 32064, sliding_window=2047), 3_821_079_552),
    "qwen2-7b": (config("qwen2", 28, 3584, 28, 4, 18944, 152064, use_sliding_window=False), 7_615_616_512),
    "qwen2-0.5b": (config("qwen2", 24, 896, 14, 2, 4864, 151936, tie_word_embeddings=True), 494_032_768),
    "qwen3-8b": (config("qwen3", 36, 4096, 32, 8, 12288, 151936, head_dim=128), 8_190_735_360),
    "gemma-7b": (config("gemma", 28, 3072, 16, 16, 24576, 256000, head_dim=256, hidden_act="gelu"), 8_537_680_896),
    "gemma-2-9b": (
        config("gemma2", 42, 3584, 16, 8, 14336, 256000, head_dim=256, sliding_window=4096,
               hidden_act="gelu_pytorch_tanh"), 9_241_705_984,
    ),
    "phi-2": (
        config("phi", 32, 2560, 32, 32, 10240, 51200, partial_rotary_factor=0.4, hidden_act="gelu_new"), 2_779_683_840
    ),
    "pythia-6.9b": (config("gpt_neox", 32, 4096, 32, 32, 16384, 50432, rotary_pct=0.25, hidden_act="gelu"),
                    6_857_302_016),
    "deepseek-v2-lite": (
        config("deepseek_v2", 27, 2048, 16, 16, 10944, 102400, **DEEPSEEK, q_lora_rank=None, n_routed_experts=64,
               n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1408, first_k_dense_replace=1),
        15_706_484_224,
    ),
    "deepseek-v3": (
        config("deepseek_v3", 61, 7168, 128, 128, 18432, 129280, **DEEPSEEK, q_lora_rank=1536, n_routed_experts=256,
               n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=3),
        671_026_419_200,
    ),
    "starcoder2-7b": (config("starcoder2", 32, 4608, 36, 4, 18432, 49152, hidden_act="gelu_pytorch_tanh",
                             sliding_window=4096, use_bias=True, mlp_type="default"), 7_173_923_840),
    "stablelm-2-1.6b": (config("stablelm", 24, 2048, 32, 32, 5632, 100352, use_qkv_bias=True,
                               partial_rotary_factor=0.25), 1_644_515_328),
    "granite-3.1-8b": (config("granite", 40, 4096, 32, 8, 12800, 49155, tie_word_embeddings=True,
                              residual_multiplier=0.22), 8_170_848_256),
    "granite-3.0-3b-a800m": (config("granitemoe", 32, 1536, 24, 8, 512, 49155, tie_word_embeddings=True,
                                    num_local_experts=40, num_experts_per_tok=8), 3_298_793_472),
    "qwen1.5-moe-a2.7b": (
        config("qwen2_moe", 24, 2048, 16, 16, 5632, 151936, moe_intermediate_size=1408, decoder_sparse_step=1,
               shared_expert_intermediate_size=5632, num_experts=60, num_experts_per_tok=4), 14_315_784_192,
    ),
    "qwen3-30b-a3b": (
        config("qwen3_moe", 48, 2048, 32, 4, 6144, 151936, head_dim=128, moe_intermediate_size=768, num_experts=128,
               num_experts_per_tok=8, mlp_only_layers=[]), 30_532_122_624,
    ),
    "phi-3.5-moe": (
        config("phimoe", 32, 4096, 32, 8, 6400, 32064, num_local_experts=16, num_experts_per_tok=2,
               attention_bias=True, lm_head_bias=True), 41_873_153_344,
    ),
    "glm-4-9b": (config("glm", 40, 4096, 32, 2, 13696, 151552, head_dim=128, attention_bias=True,
                        partial_rotary_factor=0.5), 9_399_951_360),
    "glm-4-9b-0414": (config("glm4", 40, 4096, 32, 2, 13696, 151552, head_dim=128, partial_rotary_factor=0.5),
                      9_400_094_720),
    "command-r": (config("cohere", 40, 8192, 64, 64, 22528, 256000, logit_scale=0.0625), 34_980_831_232),
    "command-r7b": (config("cohere2", 32, 4096, 32, 8, 14336, 256000, head_dim=128, sliding_window=4096,
                           sliding_window_pattern=4), 8_028_033_024),
    "gemma-3-1b": (
        config("gemma3_text", 26, 1152, 4, 1, 6912, 262144, head_dim=256, sliding_window=512,
               sliding_window_pattern=6, hidden_act=None, hidden_activation="gelu_pytorch_tanh"), 999_885_952,
    ),
}  # fmt: skip
"""Facts of configurations, and the parameters that the header of the checkpoint's safetensors has (on its page at
Hugging Face; of Pythia the table of its README; of DeepSeek V3 without its last module). transformers 5.24 makes
exactly as many of each, of DeepSeek V3 14,848 less: the biases of its routers are no parameters there. Of the families
behind it the counts are those of transformers 5.18: ours have Cohere's norms with biases, and Qwen's shared expert
without its gate."""
WRITTEN = {
    "_name_or_path": "", "architectures": None, "chunk_size_feed_forward": 0, "id2label": {"0": "LABEL_0"},
    "is_encoder_decoder": False, "label2id": {"LABEL_0": 0}, "output_attentions": False, "problem_type": None,
    "output_hidden_states": False, "return_dict": True, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
    "transformers_version": "5.24.0", "use_cache": True,
}  # fmt: skip
"""Fields that transformers 5 writes of every model."""
SMALL = {
    "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512, "vocab_size": 1024, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_were_published(name: str) -> None:
    data, parameters = PUBLISHED[name]
    shape = from_config({**data, **WRITTEN}, name, "config.json")
    assert shape.parameters == pytest.approx(parameters, rel=1e-3)


def test_a_latent_is_what_a_token_takes() -> None:
    """DeepSeek V3: 576 elements a layer for keys and values of 128 heads."""
    assert from_config(PUBLISHED["deepseek-v3"][0], "v3", "").kv_bytes(1) == 61 * 576 * 2


def test_every_family_has_a_published_model() -> None:
    assert {data["model_type"] for data, _ in PUBLISHED.values()} == set(FAMILIES)


def test_a_configuration_of_a_built_in_model_is_that_model() -> None:
    for name, published in (("llama2-7b", "llama-2-7b"), ("mistral-7b", "mistral-7b")):
        assert from_config(PUBLISHED[published][0], name, "") == MODELS[name]


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("qwen3", {}), ("gemma2", {"sliding_window": 64}), ("phi", {"partial_rotary_factor": 0.5}),
        ("gpt_neox", {"rotary_pct": 0.25, "num_key_value_heads": 4}),
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
        ("deepseek_v2", {**DEEPSEEK, "kv_lora_rank": 96, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32,
                         "v_head_dim": 32, "moe_intermediate_size": 128, "n_routed_experts": 4,
                         "num_experts_per_tok": 2}),
    ],
)  # fmt: skip
def test_families_run(family: str, more: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": family, **SMALL, **more}))
    assert main(["run", str(path), "--context", "700", "--requests", "2", "--json"]) == 0
    llm = json.loads(capsys.readouterr().out)["llm"]
    shape = shape_of(str(path))
    windowed, whole = (layer["kv_bytes_read"] for layer in llm["kv_layers"])
    read_back = bool(shape.latent)  # a latent is read for the scores, and again for the values
    assert whole == 2 * 2 * shape.cache_heads * shape.cache_dim * 4 // 8 * (700 + read_back)
    assert windowed < whole / 2 if shape.window_of(0) else windowed == whole
    assert llm["bound_share"] < 1 and llm["parameters"] == shape.parameters


def test_check_and_info_take_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **SMALL}))
    assert main(["info", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kv_bytes_per_token"] == 2 * 2 * 128 * 2 and found["weight_bytes"] == 2 * found["parameters"]
    assert main(["check", str(path)]) == 0


@pytest.mark.slow
def test_serve_takes_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **SMALL}))
    served = ["serve", str(path), "--workload", "burst", "--first", "2", "--input", "8", "--output", "2"]
    assert main([*served, "--check-steps", "0", "--kv", "atom"]) == 0
    assert "KV atom" in capsys.readouterr().out
    path.write_text(json.dumps({"model_type": "gemma2", "sliding_window": 4, **SMALL}))
    assert main(served) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "lama"}, "model_type 'lama': must be one of llama, .*; did you mean llama"),
        ({"hidden_size": -1}, "hidden_size -1: must be a whole number from 1"),
        ({"hidden_size": None}, "hidden_size: is missing, a llama has it"),
        ({"hidden_act": "sine"}, "hidden_act 'sine': must be one of silu"),
        ({"hidden_act": ["silu"]}, r"hidden_act \['silu'\]: must be one of silu"),
        ({"num_hidden_layers": 1 << 30},
         "num_hidden_layers 1073741824, num_attention_heads 4: must be at most 1,048,576 heads in all"),
        ({"num_attention_heads": 1 << 30},
         "num_hidden_layers 2, num_attention_heads 1073741824: must be at most"),
        ({"attention_bias": 1}, "attention_bias 1: must be true or false"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3: must divide num_attention_heads 4"),
        ({"num_expert": 4}, "num_expert: not known of model_type llama"),
        ({"head_dim": None, "hidden_size": 250}, "hidden_size 250: must be a multiple of num_attention_heads 4"),
        ({"head_dim": 63}, "head_dim 63: must be even"),
        ({"partial_rotary_factor": 0.4}, "partial_rotary_factor 0.4: makes 25 of the 64 elements of a head: must be"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder True: must be False of a llama"),
        ({"model_type": "phi", "qk_layernorm": True}, "qk_layernorm True: must be False of a phi"),
        ({"model_type": "mistral", "attention_bias": True}, "attention_bias True: must be False of a mistral"),
        ({"model_type": "mistral", "layer_types": [WINDOWED] * 2}, "sliding_window: is missing, layer_types has"),
        ({"model_type": "gemma2", "layer_types": [WINDOWED]}, "layer_types: must be 2 of sliding_attention and full_"),
        ({"model_type": "gemma2", "layer_types": [FULL, WINDOWED]}, "layer_types: .* must be in every N-th layer"),
        ({"model_type": "cohere", "use_qk_norm": True}, "use_qk_norm True: must be False of a cohere"),
        ({"model_type": "gemma3_text", "sliding_window": 8, "sliding_window_pattern": 1},
         "whole_every 1: must be 0, or at least 2"),
        ({"model_type": "stablelm", "qk_layernorm": True}, "qk_layernorm True: must be False of a stablelm"),
        ({"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
          "mlp_only_layers": [0]}, r"mlp_only_layers \[0\]: must be \[\] of a qwen3_moe"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
         "max_window_layers 1: must be 0, or num_hidden_layers 2 or more"),
    ],
)  # fmt: skip
def test_wrong_and_unknown_fields_are_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=f"c.json: {said}"):
        from_config({"model_type": "llama", **SMALL, **change}, "c", "c.json")


def test_windows_and_partial_rotary_positions_are_read_in_each_form() -> None:
    def shape(family: str, **more: Any) -> Any:
        return from_config({"model_type": family, **SMALL, **more}, "c", "c.json")

    kinds = {"layer_types": [WINDOWED, FULL]}
    assert shape("gemma2", sliding_window=64) == shape("gemma2", sliding_window=64, **kinds)
    assert shape("mistral", sliding_window=64, **kinds).whole_every == 2
    assert shape("mistral", sliding_window=64, layer_types=[FULL] * 2).window == 0
    used = {"use_sliding_window": True, "sliding_window": 64}
    assert [shape("qwen2", **used, max_window_layers=layers).window for layers in (0, 2)] == [64, 0]
    rope = {"partial_rotary_factor": 0.5, "rope_type": "default"}
    assert shape("phi", rope_parameters=rope).rotary == shape("phi", partial_rotary_factor=0.5).rotary == 32


def test_a_file_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    text = json.dumps({"model_type": "llama", **SMALL})
    path.write_text("\ufeff" + text, encoding="utf-8")
    assert shape_of(str(path)).width == 256
    path.write_text(text[:-1] + ', "hidden_size": 64}')
    with pytest.raises(ModelError, match="a decoder: hidden_size: is there twice; drop one"):
        shape_of(str(path))
    path.write_text('{"hidden_size": 64}')
    assert is_shape(str(path))  # by its name: it is no list of commands
    with pytest.raises(ModelError, match="model_type 'None': must be one of"):
        shape_of(str(path))


def test_a_shape_in_yaml_is_checked_fact_by_fact(tmp_path: Path) -> None:
    facts = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 4, "head_dim": 16, "ffn": 128, "vocab": 100}
    assert from_facts({**facts, "parallel": True}, "m", "m.yaml").parallel
    for wrong, said in (
        ({"layer": 2}, "layer: no fact of a shape"), ({"tied": 1}, "tied 1: must be true or false"),
        ({"rotary": 3}, "rotary 3: must be even"), ({"vocab": -1}, "vocab -1: must be a whole number"),
        ({"latent": 8}, "latent 8: says nothing without latent_rotary; give both or none"),
        ({"dense_layers": 1, "dense_ffn": 8}, "dense_layers 1: says nothing without experts"),
        ({"positions": 9, "rotary": 8}, "positions 9, rotary 8: no shape has both"),
        ({"positions": 2}, "positions 2: must be above 2, the rows before position 0"),
    ):  # fmt: skip
        with pytest.raises(ModelError, match=said):
            from_facts(facts | wrong, "m", "m.yaml")
    path = tmp_path / "m.yaml"
    for text, said in (("layers: 2\nwidth: [", "m.yaml:3: not YAML"), ("layers: 2\nlayers: 3", "layers: given twice")):
        path.write_text(text)
        with pytest.raises(BadInputError, match=said):
            shape_of(str(path))
    with pytest.raises(ModelError, match="layers, width, heads, kv_heads, head_dim, ffn, vocab: must be there"):
        from_facts({}, "m", "m.yaml")
