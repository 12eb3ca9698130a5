"""A vLLM without a scheduler: one attention layer, its cache, and requests that grow by steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import KVCacheTensor, create_kv_cache_views
from vllm.v1.kv_cache_layout import KVCacheLayout

from flashsmith.integrations.vllm_attention import FlashsmithBackend
from flashsmith.lab.soak import truth_of
from flashsmith.reference import Packing, Semantics
from support.decoding import WILD
from support.fp8_caches import FP8

LAYER = "model.layers.0.attn"
SPARE_PAGES = 3


class Server:
    """Requests by number. Unused memory is NaN, in pages, keys and queries. Keys and values are
    numbers that the cache represents exactly.

    scales: Scales of K and V, one or by head; the cache is FP8 then.
    """

    def __init__(
        self,
        heads: tuple[int, int] = (4, 2),
        d_head: int = 64,
        dtype: torch.dtype = torch.bfloat16,
        page_size: int = 16,
        n_pages: int = 60,
        layout: str = "LBNHC",
        scales: tuple[float | list[float], float | list[float]] | None = None,
        **options: Any,
    ) -> None:
        self.heads, self.d_head, self.dtype, self.page_size = heads, d_head, dtype, page_size
        self.config = VllmConfig(device_config=DeviceConfig("cpu"))
        self.is_fp8 = scales is not None
        if self.is_fp8:
            options["cache_config"] = CacheConfig(cache_dtype="fp8")
        with set_current_vllm_config(self.config), default_dtype(dtype):
            self.layer = Attention(
                heads[0], d_head, d_head**-0.5, heads[1], prefix=LAYER,
                attn_backend=FlashsmithBackend, **options,
            )  # fmt: skip
        self.layer.process_weights_after_loading(dtype)
        if scales is not None:
            self.layer._k_scale, self.layer._v_scale = map(torch.tensor, scales)
        self.layer.kv_cache = self._cache(n_pages, KVCacheLayout[layout])
        builder = FlashsmithBackend.get_builder_cls()
        self.builder = builder(self._spec(), [LAYER], self.config, torch.device("cpu"))
        self.free = torch.randperm(n_pages).tolist()
        self.pages: dict[int, list[int]] = {}
        self.k: dict[int, torch.Tensor] = {}
        self.v: dict[int, torch.Tensor] = {}

    def _spec(self) -> Any:
        """Returns the spec of the layer's cache, with pages of the server's size."""
        spec = self.layer.get_kv_cache_spec(self.config)
        dtype = torch.uint8 if self.is_fp8 else self.dtype
        return type(spec)(**{**vars(spec), "block_size": self.page_size, "dtype": dtype})

    def _cache(self, n_pages: int, layout: KVCacheLayout) -> torch.Tensor:
        """Allocates the cache as vLLM does for two layers; this layer is the second."""
        spec = self._spec()
        page, n_layers = spec.page_size_bytes, 2
        raw = torch.empty(n_layers * n_pages * page, dtype=torch.int8)
        raw.view(FP8 if self.is_fp8 else self.dtype).fill_(math.nan)
        layer_stride, block_stride = page, page * n_layers
        if layout.is_layer_compact:
            layer_stride, block_stride = page * n_pages, page
        elif layout is KVCacheLayout.BHLNC:
            layer_stride = page // self.heads[1]
        where = KVCacheTensor(
            size=raw.numel(),
            layers=["other", LAYER],
            layer_stride=layer_stride,
            block_stride=block_stride,
        )
        return create_kv_cache_views(raw, spec, n_pages, layout, where)[1]

    def metadata(
        self, n_queries: dict[int, int], padding: int = 0, **changed: Any
    ) -> CommonAttentionMetadata:
        """Returns the metadata of a batch, whose new tokens have their pages.

        padding: The number of empty requests, and of tokens, that follow, as in a CUDA graph.
        """
        lengths = [len(self.k[request]) for request in n_queries] + [0] * padding
        counts = [*n_queries.values()] + [0] * padding
        begins = torch.tensor([0, *counts]).cumsum(0).int()
        width = max(-(-length // self.page_size) for length in lengths) + 1
        table = torch.full((len(lengths), width), WILD, dtype=torch.int32)
        slots = []
        for row, (request, count) in enumerate(n_queries.items()):
            pages = self.pages[request]
            table[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
            for place in range(lengths[row] - count, lengths[row]):
                slots.append(pages[place // self.page_size] * self.page_size)
                slots[-1] += place % self.page_size
        given = {
            "query_start_loc": begins.clone(),
            "query_start_loc_cpu": begins,
            "seq_lens": torch.tensor(lengths, dtype=torch.int32),
            "seq_lens_cpu_upper_bound": torch.tensor(lengths, dtype=torch.int32),
            "num_reqs": len(lengths),
            "num_actual_tokens": sum(counts) + padding,
            "max_query_len": max(counts),
            "max_seq_len": max(lengths),
            "block_table_tensor": table,
            "slot_mapping": torch.tensor(slots + [-1] * padding),
        }
        return CommonAttentionMetadata(**{**given, **changed})

    def grow(self, n_queries: dict[int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Adds tokens to requests; returns q, k and v of all, slices of one tensor."""
        n_heads, n_heads_kv = self.heads
        total = sum(n_queries.values())
        qkv = torch.randn(total, (n_heads + 2 * n_heads_kv) * self.d_head).to(self.dtype)
        sizes = [n * self.d_head for n in (n_heads, n_heads_kv, n_heads_kv)]
        q, k, v = qkv.split(sizes, -1)
        first = 0
        for request, count in n_queries.items():
            for known, new in ((self.k, k), (self.v, v)):
                rows = new[first : first + count].view(count, n_heads_kv, self.d_head)
                if self.is_fp8:
                    rows.copy_(self._as_held(rows, is_k=known is self.k))
                known[request] = torch.cat([known.get(request, rows[:0]), rows])
            first += count
            pages = self.pages.setdefault(request, [])
            while len(pages) * self.page_size < len(self.k[request]):
                pages.append(self.free.pop())
        return q, k, v

    def _as_held(self, rows: torch.Tensor, *, is_k: bool) -> torch.Tensor:
        """Returns the numbers that an FP8 cache holds for these rows."""
        scale = (self.layer._k_scale if is_k else self.layer._v_scale).view(-1, 1)
        return (rows.float() / scale).to(FP8).float() * scale

    def step(
        self, n_queries: dict[int, int], padding: int = 0, **changed: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds tokens to each request, and returns their q and the layer's result."""
        tensors = self.grow(n_queries)
        given = self.metadata(n_queries, padding, **changed)
        batch = self.builder.build(0, given)
        padded = [torch.cat([t, t.new_full((padding, t.shape[1]), math.nan)]) for t in tensors]
        with set_current_vllm_config(self.config), torch.no_grad():
            slots = {LAYER: given.slot_mapping}
            with set_forward_context({LAYER: batch}, self.config, slot_mapping=slots):
                out = self.layer(*(padded if padding else tensors))
        shape = (-1, self.heads[0], self.d_head)
        return tensors[0].view(shape), out[: len(tensors[0])].view(shape)

    def assert_right(
        self, n_queries: dict[int, int], padding: int = 0, **semantics: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs a step, and compares its result with the reference in float64."""
        q, o = self.step(n_queries, padding)
        lengths = [len(self.k[request]) for request in n_queries]
        k, v = (
            torch.nn.utils.rnn.pad_sequence([known[r] for r in n_queries], batch_first=True)
            for known in (self.k, self.v)
        )
        begins = torch.tensor([0, *n_queries.values()]).cumsum(0).int()
        packing = Packing(begins, seqused_k=torch.tensor(lengths, dtype=torch.int32))
        truth = truth_of(q, k, v, Semantics(causal=True, **semantics), packing)
        of_o, _ = truth.compare(o, truth.lse.float())
        assert of_o.ok, f"o {of_o}"
        return q, o


def kinds(parts: Sequence[Any]) -> list[str]:
    return [type(part).__name__ for part in parts]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
