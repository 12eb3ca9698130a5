"""Other implementations of attention, to be measured beside ours."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from flashsmith import settings
from flashsmith.errors import DeviceError

Run = Callable[[], torch.Tensor]
Make = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], Run]

_FA3_MODULE = "flash_attn_interface"
_FA4_MODULE = "flash_attn.cute.interface"


@dataclass(frozen=True)
class Peer:
    """One implementation.

    ``make(q, k, v, causal)`` takes (batch, seq_len, n_heads, d_head) tensors, equal in shape, and
    returns a function that computes o, of the same shape. What depends on the shape alone is done
    in ``make``, so that only attention is timed.
    """

    name: str
    title: str
    make: Make
    why_missing: Callable[[], str]  # "" where it can be used

    @property
    def is_available(self) -> bool:
        return not self.why_missing()


def _sdpa(backend: SDPBackend) -> Make:
    def make(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Run:
        heads_first = _heads_first(q, k, v)

        def run() -> torch.Tensor:
            with sdpa_kernel(backend):
                o = scaled_dot_product_attention(*heads_first, is_causal=causal)
            return o.transpose(1, 2)

        return run

    return make


def _heads_first(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def _make_flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Run:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.compiler.reset()  # each shape compiles anew, and torch gives up after a few
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    heads_first = _heads_first(q, k, v)
    seq_len = q.shape[1]
    mask = (
        create_block_mask(
            lambda _b, _h, i, j: i >= j, None, None, seq_len, seq_len, device=str(q.device)
        )
        if causal
        else None
    )

    def run() -> torch.Tensor:
        o: torch.Tensor = compiled(*heads_first, block_mask=mask)
        return o.transpose(1, 2)

    return run


def _make_fa3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Run:
    if settings.FA3_SO.get() is None:
        return _flash_attn_func(_FA3_MODULE, q, k, v, causal)
    return _make_fa3_of_vllm(q, k, v, causal)


def _make_fa3_of_vllm(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Run:
    """The operator in vLLM's wheel, which has the variable-length entry only."""
    torch.ops.load_library(str(settings.FA3_SO.get()))  # type: ignore[no-untyped-call]
    forward = torch.ops._vllm_fa3_C.fwd
    batch, seq_len, n_heads, d_head = q.shape
    packed = [tensor.reshape(-1, n_heads, d_head) for tensor in (q, k, v)]
    offsets = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * seq_len
    # By position, in the order of the operator's schema.
    arguments: tuple[Any, ...] = (
        *packed,
        *(None, None, None, None),  # k_new, v_new, q_v, out
        *(offsets, offsets, None),  # cu_seqlens of q, k, k_new
        *(None, None, seq_len, seq_len),  # seqused of q, k; max_seqlen of q, k
        *(None, None, None),  # page table, kv_batch_idx, leftpad_k
        *(None, None, None),  # rotary cos, sin, seqlens
        *(None, None, None),  # descale of q, k, v
        *(d_head**-0.5, causal, -1, -1, 0.0, True),  # scale, causal, window, softcap, interleaved
        *(None, 1, None, 0, None),  # scheduler metadata, splits, pack_gqa, SM margin, sinks
        *(1, 0, None),  # context parallel world size, rank, total lengths
    )

    def run() -> torch.Tensor:
        o: torch.Tensor = forward(*arguments)[0]
        return o.view(q.shape)

    return run


def _make_fa4(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Run:
    return _flash_attn_func(_FA4_MODULE, q, k, v, causal)


def _flash_attn_func(
    module: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> Run:
    function = importlib.import_module(module).flash_attn_func

    def run() -> torch.Tensor:
        result = function(q, k, v, causal=causal)
        o: torch.Tensor = result[0] if isinstance(result, tuple) else result
        return o

    return run


def _why_no_gpu() -> str:
    return "" if torch.cuda.is_available() else "torch finds no GPU"


def _why_no_fa2() -> str:
    return ""  # torch has it for CPUs too


def _why_no_cudnn() -> str:
    if why := _why_no_gpu():
        return why
    if not torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]
        return "this torch has no cuDNN"
    return ""


def _why_no_fa3() -> str:
    library = settings.FA3_SO.get()
    if library is not None and not library.is_file():
        return f"there is no file {settings.FA3_SO.name}={library}"
    if library is None and not _has_module(_FA3_MODULE):
        return (
            f"the module {_FA3_MODULE} is not installed; install FlashAttention-3, or set "
            f"{settings.FA3_SO.name} to vLLM's _vllm_fa3_C library"
        )
    return _why_no_gpu()


def _why_no_fa4() -> str:
    if not _has_module(_FA4_MODULE):
        return f"the module {_FA4_MODULE} is not installed; `pip install flash-attn-4`"
    return _why_no_gpu()


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # of a parent
        return False


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "fa2", "FlashAttention-2 (torch SDPA)", _sdpa(SDPBackend.FLASH_ATTENTION), _why_no_fa2
        ),
        Peer("cudnn", "cuDNN (torch SDPA)", _sdpa(SDPBackend.CUDNN_ATTENTION), _why_no_cudnn),
        Peer("fa3", "FlashAttention-3", _make_fa3, _why_no_fa3),
        Peer("fa4", "FlashAttention-4", _make_fa4, _why_no_fa4),
        Peer("flex", "FlexAttention (torch.compile)", _make_flex, _why_no_gpu),
    )
}


def find_peers(names: list[str]) -> list[Peer]:
    """The peers called ``names``. Raises ValueError that lists them."""
    if unknown := [name for name in names if name not in PEERS]:
        raise ValueError(
            f"peer {', '.join(map(repr, unknown))} is not known; supported: {', '.join(PEERS)}"
        )
    return [PEERS[name] for name in dict.fromkeys(names)]


def first_available(*names: str) -> Peer:
    """The first of ``names`` that can be used here. Raises DeviceError with every reason."""
    reasons = []
    for peer in find_peers(list(names)):
        if peer.is_available:
            return peer
        reasons.append(f"{peer.name}: {peer.why_missing()}")
    raise DeviceError(f"no {' or '.join(names)} here ({'; '.join(reasons)})")
