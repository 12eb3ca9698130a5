"""Makes small configurations of any class of transformers, with windows and chunks that matter."""

from __future__ import annotations

from typing import Any

WINDOW = 5

# Values by the names that fields have in many configurations.
SIZES: dict[str, Any] = {
    **dict.fromkeys(
        (
            *("hidden_size", "d_model", "embed_dim", "n_embd", "dim", "hidden_dim", "width"),
            *("embedding_size", "out_hidden_size", "text_hidden_size", "projection_dim"),
            *("encoder_hidden_size", "decoder_hidden_size", "text_embed_dim", "output_dim"),
            *("encoder_hidden_dim", "cross_hidden_size", "dim_model", "lm_hidden_size"),
            *("projector_hidden_size", "projection_hidden_size", "hidden_size_global"),
            *("memory_attention_hidden_size", "memory_encoder_hidden_size", "fpn_hidden_size"),
            *("vision_output_dim", "patch_embed_hidden_size", "downsample_hidden_size"),
            *("perceiver_resampler_hidden_size", "language_model_hidden_size", "emb_dim"),
            *("vector_quantization_hidden_dimension", "thinker_hidden_size", "codec_dim"),
            *("feature_size", "backbone_hidden_size", "mask_feature_size", "fpn_feature_size"),
            *("cross_attention_hidden_size", "swin_hidden_size", "audio_hidden_size"),
        ),
        64,
    ),
    **dict.fromkeys(
        (
            *("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "d_ff"),
            *("shared_intermediate_size", "n_inner", "ffn_hidden_size", "mlp_dim", "dff"),
            *("shared_expert_intermediate_size", "decoder_intermediate_size", "inner_dim"),
            *("dense_intermediate_size", "moe_shared_expert_intermediate_size", "dim_ff"),
            *("encoder_intermediate_size", "intermediate_size_mlp", "expert_ffn_hidden_size"),
            *("memory_attention_feed_forward_hidden_size", "memory_fuser_intermediate_dim"),
            *("perceiver_resampler_mlp_intermediate_size", "speech_encoder_intermediate_size"),
            *("t2u_encoder_ffn_dim", "t2u_decoder_ffn_dim", "ffn_dimension"),
        ),
        64,
    ),
    **dict.fromkeys(
        (
            *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "layers"),
            *("encoder_layers", "decoder_layers", "num_decoder_layers", "encoder_num_layers"),
            *("encoder_num_hidden_layers", "decoder_num_hidden_layers", "num_encoder_layers"),
            *("speech_encoder_layers", "t2u_encoder_layers", "t2u_decoder_layers"),
            *("memory_attention_num_layers", "perceiver_resampler_num_layers"),
            *("mit_num_hidden_layers", "pred_num_hidden_layers", "resampler_depth"),
            *("max_window_layers", "num_attention_layers", "conf_num_hidden_layers"),
        ),
        2,
    ),
    **dict.fromkeys(
        (
            *("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
            *("encoder_attention_heads", "decoder_attention_heads", "self_attn_heads"),
            *("encoder_num_attention_heads", "decoder_num_attention_heads"),
            *("speech_encoder_attention_heads", "t2u_encoder_attention_heads"),
            *("t2u_decoder_attention_heads", "cross_num_attention_heads"),
            *("perceiver_resampler_num_attention_heads", "resampler_n_heads"),
            *("mit_num_attention_heads", "prompt_num_attention_heads", "num_attn_heads"),
            *("pred_num_attention_heads", "conf_num_attention_heads"),
            *("swa_num_attention_heads", "decoder_self_attention_heads"),
            *("decoder_cross_attention_heads", "memory_attention_num_attention_heads"),
        ),
        4,
    ),
    **dict.fromkeys(
        (
            *("num_key_value_heads", "cross_num_key_value_heads", "swa_num_key_value_heads"),
            *("multi_query_group_num", "num_kv_heads", "num_key_value_attention_heads"),
        ),
        2,
    ),
    **dict.fromkeys(
        (
            *("head_dim", "cross_head_dim", "swa_head_dim", "d_kv", "global_head_dim"),
            *("perceiver_resampler_attention_head_dim", "attention_head_dim", "kv_channels"),
            *("v_head_dim", "index_head_dim", "kv_lora_rank", "q_lora_rank", "resampler_head_dim"),
        ),
        16,
    ),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), 8),
    **dict.fromkeys(("moe_intermediate_size", "expert_dim", "shared_expert_dim"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "n_group", "topk_group"), 1),
    **dict.fromkeys(("vocab_size", "text_vocab_size", "t2u_vocab_size", "char_vocab_size"), 128),
    **dict.fromkeys(("vocab_size_per_layer_input", "codebook_size", "audio_vocab_size"), 128),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 128),
    **dict.fromkeys(("max_source_positions", "max_target_positions", "n_ctx"), 128),
    **dict.fromkeys(("pretrain_image_size", "max_image_size"), 32),
    **dict.fromkeys(("pad_token_id", "eod_token_id"), 0),
    **dict.fromkeys(("bos_token_id", "decoder_start_token_id", "cls_token_id"), 1),
    **dict.fromkeys(("eos_token_id", "sep_token_id", "forced_eos_token_id"), 101),
    "image_size": 32,
    "patch_size": 8,
    "num_mel_bins": 16,
    "index_topk": 4,
    "index_n_heads": 2,
    "first_k_dense_replace": 1,
    "decoder_sparse_step": 1,
    "sliding_window": WINDOW,
    "sliding_window_size": WINDOW,
    "local_attention": 2 * WINDOW,
    "attention_chunk_size": WINDOW,
    "use_sliding_window": True,
    "hidden_size_per_layer_input": 16,
    "mamba_d_state": 8,
    "mamba_n_heads": 4,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "mamba_d_head": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
_TOKENS = ("image_token", "video_token", "audio_token", "vision_start_token", "vision_end_token")
SIZES |= {f"{name}_{end}": 120 + i for i, name in enumerate(_TOKENS) for end in ("id", "index")}


def tiny_config(config_class: Any, **given: Any) -> Any:
    """Returns a configuration of few, narrow layers, one of each type that it has by default."""
    default = config_class()
    fields = fields_of(config_class)
    sizes = {name: SIZES[name] for name in fields & SIZES.keys() if _is_number(default, name)}
    if "qk_rope_head_dim" in fields:
        sizes.pop("head_dim", None)
        sizes |= {"num_key_value_heads": 4} if "num_key_value_heads" in fields else {}
    if rope := _fitting_rope(default, sizes):
        sizes["rope_parameters"] = rope
    subs = {
        name: tiny_config(type(getattr(default, name)))
        for name in getattr(config_class, "sub_configs", {})
        if hasattr(getattr(default, name, None), "sub_configs")
    }
    own = OF_FAMILY.get(config_class.__name__, {})
    arguments = sizes | subs | own | given
    types = list(dict.fromkeys(getattr(default, "layer_types", None) or ()))
    if types and "layer_types" in fields and "layer_types" not in arguments:
        if types == ["full_attention"] and arguments.get("sliding_window"):
            types.append("sliding_attention")
        types = types * 2 if len(types) == 1 else types
        arguments |= {"layer_types": types, "num_hidden_layers": len(types)}
    try:
        return config_class(**arguments)
    except Exception:
        heads = {"num_key_value_heads": arguments.get("num_attention_heads")}
        if "num_key_value_heads" not in arguments or arguments == arguments | heads:
            raise
        return tiny_config(config_class, **given, **heads)


def _is_number(default: Any, name: str) -> bool:
    """Returns whether a field is a number or None, which stands for a derived or varying number."""
    try:
        return isinstance(getattr(default, name, None), int | float | None)
    except Exception:
        return True


# The models of these classes need rope sections, which their configurations may lack.
_SECTIONED = (
    *("Qwen2VLText", "Qwen2_5_VLText", "Qwen2_5OmniText", "Qwen2_5OmniTalker", "PaddleOCRText"),
    *("Glm4vText", "Glm4vMoeText", "GlmImageText", "GlmOcrText"),
)


def _fitting_rope(default: Any, sizes: dict[str, Any]) -> dict[str, Any] | None:
    """Returns rope parameters with sections for the heads' size; None if the class has none."""
    rope = getattr(default, "rope_parameters", None)
    if type(default).__name__.startswith(_SECTIONED):
        rope = {"mrope_section": [0, 0, 0], "rope_type": "default", "rope_theta": 1e4} | (
            rope or {}
        )
    if not isinstance(rope, dict) or "mrope_section" not in rope:
        return None
    heads = sizes.get("num_attention_heads", 4)
    size = sizes.get("head_dim") or sizes.get("hidden_size", 64) // heads
    half = int(size * rope.get("partial_rotary_factor", 1)) // 2
    count = len(rope["mrope_section"])
    section = [half // count] * count
    section[-1] += half - sum(section)
    return rope | {"mrope_section": section}


def fields_of(config_class: Any) -> set[str]:
    """Returns the names of fields that a class defines or inherits."""
    return {name for each in config_class.__mro__ for name in getattr(each, "__annotations__", {})}


_SERIES = {"prediction_length": 6, "context_length": 9, "num_time_features": 2}

# Fields of classes that do not work with the sizes above.
OF_FAMILY: dict[str, dict[str, Any]] = {
    "MiniMaxM3VLTextConfig": {
        "num_hidden_layers": 2,
        "layer_types": ["full_attention", "minimax_m3_sparse"],
        "index_block_size": 2,
        "index_topk_blocks": 2,
    },
    "XmodConfig": {"default_language": "en_XX"},
    "YolosConfig": {"image_size": [32, 32], "num_detection_tokens": 4},
    "BambaConfig": {"attn_layer_indices": [1]},
    "LongcatFlashConfig": {"head_dim": 8},
    "InformerConfig": _SERIES,
    "TimeSeriesTransformerConfig": _SERIES,
    "NemotronHConfig": {"n_groups": 2, "mamba_num_heads": 4},
    "Lfm2MoeConfig": {"layer_types": ["full_attention", "conv"], "num_dense_layers": 1},
    "MoonshineStreamingConfig": {"num_key_value_heads": 4},
    "Gemma3nTextConfig": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "activation_sparsity_pattern": [0.0] * 4,
        "intermediate_size": [64] * 4,
    },
    "MimiConfig": {"upsample_groups": 64},
    "PocketTTSAudioTokenizerConfig": {"upsample_groups": 64},
    "DbrxConfig": {"num_key_value_heads": 2},
    "KyutaiSpeechToTextConfig": {"audio_pad_token_id": 0},
}
