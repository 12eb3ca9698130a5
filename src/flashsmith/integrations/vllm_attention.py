"""The attention backend that ``flashsmith.integrations.vllm`` registers; vLLM loads it.

``vllm/v1/attention/backend.py`` defines a backend's interface. Tensors of tokens are (tokens,
heads, head_size), with the requests of a batch packed.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import KVQuantMode

from flashsmith.configs.workload import check_row_sizes
from flashsmith.integrations.vllm_batch import Batch, Keys, divide
from flashsmith.ops.checks import FP8
from flashsmith.ops.dispatch import are_read_in_place

_OLDEST_GPU = DeviceCapability(8, 0)
_16_BIT_CACHES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_FP8_CACHES = ("fp8", "fp8_e4m3")


class FlashsmithBackend(AttentionBackend):  # type: ignore[misc]
    """vLLM's backend: causal attention of decoders, over pages of any size, in any layout."""

    supported_dtypes: ClassVar[list[torch.dtype]] = list(_16_BIT_CACHES.values())
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", *_16_BIT_CACHES, *_FP8_CACHES]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # a member of vLLM's enumeration

    @staticmethod
    def get_impl_cls() -> type[FlashsmithImpl]:
        return FlashsmithImpl

    @staticmethod
    def get_builder_cls() -> type[FlashsmithBuilder]:
        return FlashsmithBuilder

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        try:
            check_row_sizes(head_size, head_size)
        except ValueError:
            return False
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        return True

    @classmethod
    def supports_compute_capability(cls, capability: DeviceCapability) -> bool:
        return bool(capability >= _OLDEST_GPU)

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False  # ``divide`` reads numbers of queries on the host

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: str | None, *others: Any
    ) -> str | None:
        """Returns why the cache's dtype does not fit the model's; None if it does."""
        if _16_BIT_CACHES.get(kv_cache_dtype or "auto", dtype) != dtype:
            return f"kv_cache_dtype {kv_cache_dtype} is not the model's dtype, {dtype}"
        if kv_cache_dtype in _FP8_CACHES and head_size % 16:
            return f"head_size {head_size} is no multiple of 16, which {kv_cache_dtype} needs"
        return None


class FlashsmithBuilder(AttentionMetadataBuilder):  # type: ignore[misc]
    """Builds the metadata of a batch, which all its layers share."""

    # A graph of ``decode`` may replay with other lengths and pages, but not with another number of
    # queries a request; other batches have sizes that the host decides.
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        # Requests with at most this number of queries come first in a batch.
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
        has_16_bit = kv_cache_spec.kv_quant_mode == KVQuantMode.NONE
        self.copies_pages = not (has_16_bit and are_read_in_place(device, kv_cache_spec.block_size))

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Batch:
        few = self.reorder_batch_threshold or 1
        return divide(common_attn_metadata, few, self.copies_pages)


class FlashsmithImpl(AttentionImpl):  # type: ignore[misc]
    """The attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """Refuses options that are not supported.

        Args:
            sliding_window: The number of keys up to its diagonal that a query sees.
            kv_sharing_target_layer_name: The layer whose cache this layer shares; None: it has a
                separate cache.
            sinks: (num_heads,): a logit of each head, read after the weights are loaded.
        """
        _refuse(attn_type != AttentionType.DECODER, "attn_type", attn_type, "decoder")
        known = FlashsmithBackend.supported_kv_cache_dtypes
        _refuse(kv_cache_dtype not in known, "kv_cache_dtype", kv_cache_dtype, ", ".join(known))
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.is_fp8_cache = kv_cache_dtype in _FP8_CACHES
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.semantics: dict[str, Any] = {
            "causal": True,
            "softmax_scale": self.scale,
            "window_size": (-1, -1) if sliding_window is None else (sliding_window - 1, 0),
            "softcap": logits_soft_cap or 0.0,
            "alibi_slopes": slopes,
            "sinks": sinks,
        }

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        if self.sinks is not None:
            self.semantics["sinks"] = self.sinks.detach().float()

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: Batch | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Writes the attention of the batch's tokens into ``output``.

        Args:
            layer: An object with _k_scale and _v_scale, float32, of one element or num_kv_heads:
                the scales of an FP8 cache.
            query: (tokens, num_heads, head_size); tokens outside all requests may follow.
            key, value: (tokens, num_kv_heads, head_size), which the cache holds already.
            kv_cache: (pages, num_kv_heads, page_size, 2 * head_size), with any strides; FP8 numbers
                as bytes.
            attn_metadata: The batch; None: vLLM measures memory, and zeros are written.
        """
        _refuse(output_scale is not None, "output_scale", "given", "None: 16-bit results")
        _refuse(output_block_scale is not None, "output_block_scale", "given", "None")
        if attn_metadata is None:
            return output.zero_()
        if self.kv_sharing_target_layer_name is not None:
            key = value = None
        k_scale = v_scale = None
        if self.is_fp8_cache:
            kv_cache = kv_cache.view(FP8)
            k_scale, v_scale = _scales(layer)
        keys = Keys(*self._pages(kv_cache), key, value, k_scale, v_scale)
        for part in attn_metadata.parts:
            part.attend(query, keys, output, self.semantics)
        return output

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Writes new keys and values into the cache; FP8 numbers are x / scale, clamped to +-448.

        Args:
            layer: See ``forward``.
            slot_mapping: int64 (tokens,): page * page_size + row of each token; a token with a
                negative slot is not written. It may be shorter than ``key``: the tokens behind
                belong to no request.
        """
        k_pages, v_pages = self._pages(kv_cache)
        if key.is_cuda:
            from vllm import _custom_ops

            _custom_ops.reshape_and_cache_flash(
                key, value, k_pages, v_pages, slot_mapping, self.kv_cache_dtype,
                layer._k_scale, layer._v_scale,
            )  # fmt: skip
            return
        token = (slot_mapping >= 0).nonzero().flatten()
        slots, page_size = slot_mapping[token], k_pages.shape[1]
        place = slots // page_size, slots % page_size
        k, v = key[token], value[token]
        if self.is_fp8_cache:
            k, v = (
                _in_fp8(t, scale).view(kv_cache.dtype)
                for t, scale in zip((k, v), _scales(layer), strict=True)
            )
        k_pages[place], v_pages[place] = k, v

    def _pages(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns views of K and V, (pages, page_size, num_kv_heads, head_size), of one tensor."""
        rows = kv_cache.transpose(1, 2)
        return rows[..., : self.head_size], rows[..., self.head_size :]


def _refuse(is_there: bool, name: str, given: str, supported: str) -> None:
    if is_there:
        raise NotImplementedError(f"{name} is {given}; supported is {supported}")


def _scales(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the scales of K and V: one for all heads, or one a head."""
    return layer._k_scale.view(-1), layer._v_scale.view(-1)


def _in_fp8(rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    largest = torch.finfo(FP8).max
    return (rows.float() / scale[:, None]).clamp(-largest, largest).to(FP8)
