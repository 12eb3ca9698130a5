"""vLLM's backend, as vLLM calls it: a layer, its KV cache, its metadata, its selection."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="needs vLLM, if only its Python part (docs/integrations.md)")

from vllm.config import AttentionConfig, set_current_vllm_config
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.selector import AttentionSelectorConfig

from flashsmith.integrations import pages, vllm_batch
from flashsmith.integrations.vllm import BACKEND, register
from flashsmith.integrations.vllm_attention import FlashsmithBackend
from support.fp8_caches import FP8
from support.vllm_server import Server, default_dtype, kinds

SLOPES = [0.5, 0.25, 0.1, 0.0]
SINKS = torch.tensor([0.5, -1.0, 0.1, 2.0])
SEMANTICS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"per_layer_sliding_window": 20}, {"window_size": (19, 0)}),
    ({"logits_soft_cap": 4.0}, {"softcap": 4.0}),
    ({"alibi_slopes": SLOPES}, {"alibi_slopes": torch.tensor(SLOPES)}),
    ({"sinks": SINKS.bfloat16()}, {"sinks": SINKS.bfloat16().float()}),
]


# ---- what it computes ----


@pytest.mark.parametrize(("options", "meant"), SEMANTICS, ids=lambda given: "+".join(given))
def test_prompts_decodes_and_both_at_once(options: dict[str, Any], meant: dict[str, Any]) -> None:
    server = Server(**options)
    server.assert_right({0: 40, 1: 1, 2: 70}, **meant)
    server.assert_right({2: 1, 0: 1, 1: 1}, **meant)
    server.assert_right({0: 1, 2: 1, 1: 50, 3: 33, 4: 1}, **meant)  # request 1 continues its prompt


SERVERS: dict[str, dict[str, Any]] = {
    "pages of one row": {"page_size": 1, "n_pages": 300},
    "pages of an odd number of rows": {"page_size": 7, "n_pages": 60},
    "heads before rows": {"layout": "LBHNC"},
    "layers within pages": {"layout": "BLNHC"},
    "heads before layers": {"layout": "BHLNC"},
    "one head of keys": {"heads": (4, 1)},
    "fp16": {"dtype": torch.float16},
    "padded heads": {"d_head": 40},
    "8 bits": {"scales": (0.5, 0.25)},
    "8 bits, scales by head": {"scales": ([0.5, 0.125], [2.0, 0.25]), "layout": "BLNHC"},
    "8 bits, pages of an odd number of rows": {"scales": (1.0, 1.0), "page_size": 7},
}


@pytest.mark.parametrize("name", SERVERS)
def test_caches_of_any_layout(name: str) -> None:
    server = Server(**SERVERS[name])
    server.assert_right({0: 40, 1: 3})
    server.assert_right({0: 1, 1: 70, 2: 9})
    server.assert_right({0: 1, 1: 1, 2: 1})


def test_a_prompt_in_chunks_is_as_one() -> None:
    server = Server()
    for _ in range(3):
        server.assert_right({0: 45})


def test_speculative_tokens() -> None:
    server = Server()
    server.builder.reorder_batch_threshold = 4
    server.assert_right({0: 40, 1: 9})
    server.assert_right({0: 4, 1: 4})
    server.assert_right({0: 4, 1: 2, 2: 3, 3: 37})


def test_rows_that_fill_a_graph_change_nothing() -> None:
    server = Server()
    server.assert_right({0: 40, 1: 9})
    server.assert_right({0: 1, 1: 1}, padding=3)


@pytest.mark.parametrize(
    "options", [{"page_size": 8, "n_pages": 120}, {"page_size": 128, "scales": (0.5, 1.0)}], ids=str
)
def test_copies_are_made_of_few_requests_at_a_time(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_batch, "_MAX_ROWS_TO_COPY", 200)
    server = Server(**options)
    server.assert_right({0: 40, 1: 9, 2: 2})
    given = {0: 40, 1: 50, 2: 50}
    server.assert_right(given)
    assert [p.seq_lens.tolist() for p in server.builder.build(0, server.metadata(given)).parts] == [
        [80, 59], [52]
    ]  # fmt: skip


def test_requests_whose_pages_are_not_copied_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_batch, "_MAX_ROWS_TO_COPY", 200)
    monkeypatch.setattr(pages.Pages, "gathered", None)
    server = Server(page_size=128)
    server.assert_right({0: 40, 1: 9, 2: 2})
    given = {0: 40, 1: 50, 2: 50}
    server.assert_right(given)
    (part,) = server.builder.build(0, server.metadata(given)).parts
    assert part.seq_lens.tolist() == [80, 59, 52]


def test_a_graph_is_replayed_with_what_the_buffers_hold() -> None:
    """The metadata object is the same, and vLLM's tensors hold other numbers."""
    server = Server()
    server.step({0: 40, 1: 9})
    q, o = server.assert_right({0: 1, 1: 1})
    given = server.metadata({0: 1, 1: 1})
    lengths, table = given.seq_lens.clone(), given.block_table_tensor.clone()
    given.seq_lens.fill_(1)
    given.block_table_tensor.zero_()
    batch = server.builder.build_for_cudagraph_capture(given)
    given.seq_lens.copy_(lengths)
    given.block_table_tensor.copy_(table)
    out = torch.full_like(q, torch.nan)
    server.layer.impl.forward(server.layer, q, None, None, server.layer.kv_cache, batch, out)
    assert torch.equal(out, o)
    (part,) = batch.parts
    assert part.seq_lens.data_ptr() == given.seq_lens.data_ptr()
    assert part.block_table.data_ptr() == given.block_table_tensor.data_ptr()


def test_a_layer_that_shares_a_cache_reads_keys_there() -> None:
    server = Server()
    q, o = server.assert_right({0: 40, 1: 9})
    impl = server.layer.impl
    impl.kv_sharing_target_layer_name = "another"
    batch, out = server.builder.build(0, server.metadata({0: 40, 1: 9})), torch.empty_like(q)
    wrong = q.new_full((49, 2, 64), torch.nan)
    impl.forward(server.layer, q, wrong, wrong, server.layer.kv_cache, batch, out)
    torch.testing.assert_close(out, o, atol=2e-2, rtol=2e-2)


def test_new_rows_are_written_where_slots_say_and_nowhere_else() -> None:
    server = Server(page_size=4, n_pages=6)
    impl, cache = server.layer.impl, server.layer.kv_cache
    k, v = torch.randn(2, 5, 2, 64).bfloat16()
    impl.do_kv_cache_update(server.layer, k, v, cache, torch.tensor([13, -1, 0, 22]))
    written = (~cache.isnan()).all(-1).nonzero()  # page, head, row
    assert sorted(written.tolist()) == sorted(
        [page, head, row] for page, row in ((3, 1), (0, 0), (5, 2)) for head in range(2)
    )
    assert torch.equal(cache[3, :, 1], torch.cat([k[0], v[0]], -1))
    assert torch.equal(cache[5, :, 2], torch.cat([k[3], v[3]], -1))


def test_rows_of_8_bits_are_divided_by_scales_and_cut() -> None:
    server = Server(page_size=4, n_pages=6, scales=([0.5, 0.01], 2.0))
    impl, cache = server.layer.impl, server.layer.kv_cache
    k, v = torch.randn(2, 3, 2, 64).bfloat16() * 8
    impl.do_kv_cache_update(server.layer, k, v, cache, torch.tensor([13, -1, 0]))
    written = cache.view(FP8)[3, :, 1].float()
    of_k = (k[0].float() / torch.tensor([[0.5], [0.01]])).clamp(-448, 448).to(FP8).float()
    assert (of_k[1].abs() == 448).any() and (cache.view(FP8)[:, :, 2:].float().isnan()).all()
    assert torch.equal(written, torch.cat([of_k, (v[0].float() / 2).to(FP8).float()], -1))


def test_sinks_are_those_of_the_loaded_weights() -> None:
    sinks = torch.zeros(4)
    server = Server(sinks=sinks)
    sinks.copy_(SINKS)
    server.layer.process_weights_after_loading(torch.bfloat16)
    server.assert_right({0: 40, 1: 9}, sinks=SINKS)


def test_zeros_where_vllm_measures_memory() -> None:
    server = Server()
    out = torch.full((3, 4, 64), torch.nan)
    assert server.layer.impl.forward(server.layer, out, out, out, out, None, out) is out
    assert (out == 0).all()


# ---- how a batch is divided ----

BATCHES: list[tuple[list[int], list[int], int, int, list[str]]] = [
    # new tokens and all tokens of requests, padding, few
    ([1, 1, 1], [9, 1, 30], 0, 1, ["Decodes 3x1"]),
    ([1, 1, 1], [9, 1, 30], 2, 1, ["Decodes 5x1"]),
    ([1, 1, 8], [9, 9, 8], 0, 1, ["Decodes 2x1", "new 1"]),
    ([1, 8, 8, 9], [9, 9, 20, 9], 0, 1, ["Decodes 1x1", "old 2", "new 1"]),
    ([8, 9], [8, 9], 0, 1, ["new 2"]),
    ([8, 9], [8, 9], 3, 1, ["new 2"]),
    ([3, 3], [8, 9], 0, 4, ["Decodes 2x3"]),
    ([3, 3], [8, 9], 3, 4, ["Decodes 3x3"]),  # three rows, which are one request in a graph
    ([3, 2], [8, 9], 0, 4, ["Decodes 1x3", "old 1"]),
    ([3, 2, 3, 9], [8, 9, 9, 9], 0, 4, ["Decodes 1x3", "old 2", "new 1"]),
    ([3, 3], [3, 9], 0, 1, ["new 1", "old 1"]),
    ([0, 0], [0, 0], 0, 1, []),
]


@pytest.mark.parametrize(("counts", "lengths", "padding", "few", "expected"), BATCHES)
def test_a_batch_is_divided(
    counts: list[int], lengths: list[int], padding: int, few: int, expected: list[str]
) -> None:
    server = Server()
    server.builder.reorder_batch_threshold = few
    for request, length in enumerate(lengths):
        server.grow({request: length})
    batch = server.builder.build(0, server.metadata(dict(enumerate(counts)), padding))
    found = []
    for part in batch.parts:
        if isinstance(part, vllm_batch.Decodes):
            found.append(f"Decodes {part.n_requests}x{part.n_queries}")
            assert len(part.seq_lens) == len(part.block_table) == part.n_requests
        else:
            n = sum(1 for n in part.cu_seqlens.diff().tolist() if n)
            found.append(f"{'new' if part.is_new else 'old'} {n}")
            assert part.cu_seqlens[0] == 0
            assert part.cu_seqlens[-1] == part.tokens.stop - part.tokens.start
    assert found == expected


def test_lengths_that_the_host_does_not_know_are_taken_for_the_longest() -> None:
    server = Server()
    server.grow({0: 30, 1: 9})
    given = server.metadata({0: 1, 1: 9}, seq_lens_cpu_upper_bound=None)
    batch = server.builder.build(0, given)
    assert kinds(batch.parts) == ["Decodes", "Packed"]
    assert batch.parts[1].max_seq_len == 30 and not batch.parts[1].is_new


@pytest.mark.parametrize("causal", [False, torch.ones(1, dtype=torch.int32)], ids=["no", "tensor"])
def test_batches_that_are_not_causal_are_refused(causal: Any) -> None:
    server = Server()
    server.grow({0: 9})
    with pytest.raises(NotImplementedError, match="causal is not True"):
        server.builder.build(0, server.metadata({0: 9}, causal=causal))


# ---- how vLLM selects it ----


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns vLLM's CUDA platform on a machine without a GPU."""
    register()
    monkeypatch.setitem(sys.modules, "vllm._C_stable_libtorch", ModuleType("stub"))
    from vllm.platforms.cuda import CudaPlatform

    capability = DeviceCapability(9, 0)
    monkeypatch.setattr(CudaPlatform, "get_device_capability", classmethod(lambda *_: capability))
    return CudaPlatform


PLAIN = AttentionSelectorConfig(128, torch.bfloat16, "auto", 16)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"head_size": 264}, "head_size"),
    ({"head_size": 100}, "head_size"),
    ({"dtype": torch.float32}, "dtype"),
    ({"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype"),
    ({"kv_cache_dtype": "fp8_per_token_head"}, "kv_cache_dtype"),
    ({"kv_cache_dtype": "fp8", "head_size": 40}, "no multiple of 16"),
    ({"kv_cache_dtype": "float16"}, "not the model's dtype"),
    ({"use_mla": True}, "MLA"),
    ({"use_sparse": True}, "sparse"),
    ({"use_mm_prefix": True}, "multimodal"),
    ({"use_non_causal": True}, "non-causal"),
    ({"use_batch_invariant": True}, "batch invariance"),
    ({"use_dcp": True}, "DCP"),
    ({"use_pcp": True}, "PCP"),
    ({"use_rswa": True}, "R-SWA"),
    ({"use_adaptive_verification": True}, "mismatch"),
    *[({"attn_type": kind}, "attention type") for kind in AttentionType if kind != "decoder"],
]
TAKEN: list[dict[str, Any]] = [
    {},
    {"head_size": 40},
    {"head_size": 256},
    {"dtype": torch.float16, "kv_cache_dtype": "float16"},
    {"kv_cache_dtype": "fp8"},
    {"kv_cache_dtype": "fp8_e4m3", "use_per_head_quant_scales": True},
    {"block_size": 1},
    {"block_size": None},
    {"has_sink": True, "has_sliding_window": True},
]


@pytest.mark.parametrize("changed", TAKEN, ids=str)
def test_vllm_takes_it_where_it_is_asked_for(cuda: Any, changed: dict[str, Any]) -> None:
    asked = AttentionConfig(backend="CUSTOM").backend
    assert asked is AttentionBackendEnum.CUSTOM
    assert cuda.get_attn_backend_cls(asked, PLAIN._replace(**changed)) == BACKEND


@pytest.mark.parametrize(("changed", "reason"), REFUSED, ids=[str(given) for given, _ in REFUSED])
def test_vllm_refuses_it_for_what_is_not_there(
    cuda: Any, changed: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        cuda.get_attn_backend_cls(AttentionBackendEnum.CUSTOM, PLAIN._replace(**changed))


def test_vllm_does_not_take_it_unasked(cuda: Any) -> None:
    from vllm.platforms.cuda import _get_backend_priorities

    chosen = _get_backend_priorities(False, DeviceCapability(9, 0))
    assert AttentionBackendEnum.CUSTOM not in chosen


def test_gpus_that_are_too_old_are_refused() -> None:
    assert FlashsmithBackend.supports_compute_capability(DeviceCapability(8, 0))
    assert not FlashsmithBackend.supports_compute_capability(DeviceCapability(7, 5))


def test_graphs_are_of_uniform_decodes() -> None:
    server = Server()
    assert server.builder.get_cudagraph_support(server.config, None) == (
        AttentionCGSupport.UNIFORM_BATCH
    )
    assert server.builder.reorder_batch_threshold == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attn_type": AttentionType.ENCODER_ONLY}, "attn_type is .*; supported is decoder"),
        ({"kv_cache_dtype": "nvfp4"}, "kv_cache_dtype is nvfp4; supported is auto, .*, fp8_e4m3"),
    ],
)
def test_a_layer_of_another_kind_is_refused(options: dict[str, Any], words: str) -> None:
    server = Server()
    with (
        set_current_vllm_config(server.config),
        default_dtype(torch.bfloat16),
        pytest.raises(NotImplementedError, match=words),
    ):
        FlashsmithBackend.get_impl_cls()(4, 64, 0.125, 2, **options)


@pytest.mark.parametrize("name", ["output_scale", "output_block_scale"])
def test_results_of_fewer_bits_are_refused(name: str) -> None:
    server, t = Server(), torch.zeros(1)
    with pytest.raises(NotImplementedError, match=f"{name} is given"):
        server.layer.impl.forward(server.layer, t, t, t, t, None, t, **{name: t})
