"""Other implementations of attention, to be measured beside ours."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from flashsmith.errors import DeviceError
from flashsmith.lab.bench import fa3
from flashsmith.lab.bench.peer_titles import PEER_TITLES as _TITLES

Run = Callable[[], torch.Tensor]
Make = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], Run]

_FA4_MODULE = "flash_attn.cute.interface"


@dataclass(frozen=True)
class Peer:
    """One implementation of attention.
    ``make(q, k, v, causal)`` takes (batch, seq_len, n_heads, d_head) tensors, equal in shape (for
    torch's SDPA k and v may have fewer heads), and returns a function that computes o, of q's
    shape. What depends on the shape alone is done in ``make``, so that only attention is timed.
    """

    name: str
    title: str
    short_title: str
    via: str  # the package through which it is called; "": its own
    make: Make
    why_missing: Callable[[], str]  # "" if it can be used
    build: Callable[[], str]  # the installed version, for the results' stamp

    @property
    def full_title(self) -> str:
        return f"{self.title} ({self.via})" if self.via else self.title

    @property
    def is_available(self) -> bool:
        return not self.why_missing()


def _sdpa(backend: SDPBackend) -> Make:
    def make(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Run:
        heads_first = _heads_first(q, k, v)
        shared = q.shape[2] != k.shape[2]

        def run() -> torch.Tensor:
            with sdpa_kernel(backend):
                o = scaled_dot_product_attention(*heads_first, is_causal=causal, enable_gqa=shared)
            return o.transpose(1, 2)

        return run

    return make


def _heads_first(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def flex_run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, score_mod: Any = None
) -> Run:
    """Returns a run of FlexAttention, compiled by torch; q and k must be equally long."""
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
        o: torch.Tensor = compiled(*heads_first, score_mod=score_mod, block_mask=mask)
        return o.transpose(1, 2)

    return run


def _make_fa3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Run:
    operators = fa3.load_operators()
    softmax_scale = q.shape[-1] ** -0.5

    def run() -> torch.Tensor:
        o: torch.Tensor = operators.fwd(q, k, v, softmax_scale=softmax_scale, is_causal=causal)[0]
        return o

    return run


def _make_fa4(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Run:
    function = importlib.import_module(_FA4_MODULE).flash_attn_func

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
    return fa3.why_missing() or _why_no_gpu()


def _why_no_fa4() -> str:
    if not _has_module(_FA4_MODULE):
        return f"the module {_FA4_MODULE} is not installed; `pip install flash-attn-4`"
    return _why_no_gpu()


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # the parent package is missing
        return False


def _torch_build() -> str:
    return f"torch {torch.__version__}"


def _cudnn_build() -> str:
    return f"cuDNN {torch.backends.cudnn.version()}"  # type: ignore[no-untyped-call]


def _fa4_build() -> str:
    try:
        return f"flash-attn-4 {importlib.metadata.version('flash-attn-4')}"
    except importlib.metadata.PackageNotFoundError:
        return "flash-attn-4, version not recorded"


_SDPA, _COMPILE = "torch SDPA", "torch.compile"
_FA2 = _sdpa(SDPBackend.FLASH_ATTENTION)
_CUDNN = _sdpa(SDPBackend.CUDNN_ATTENTION)
PEERS = {
    peer.name: peer
    for peer in (
        Peer("fa2", _TITLES["fa2"], "FA2", _SDPA, _FA2, _why_no_fa2, _torch_build),
        Peer("cudnn", _TITLES["cudnn"], "cuDNN", _SDPA, _CUDNN, _why_no_cudnn, _cudnn_build),
        Peer("fa3", _TITLES["fa3"], "FA3", "", _make_fa3, _why_no_fa3, fa3.build),
        Peer("fa4", _TITLES["fa4"], "FA4", "", _make_fa4, _why_no_fa4, _fa4_build),
        Peer("flex", _TITLES["flex"], "Flex", _COMPILE, flex_run, _why_no_gpu, _torch_build),
    )
}


def find_peers(names: Sequence[str]) -> list[Peer]:
    """Returns the peers with these names. Raises ValueError: A name is not known."""
    if unknown := [name for name in names if name not in PEERS]:
        raise ValueError(
            f"peer {', '.join(map(repr, unknown))} is not known; supported: {', '.join(PEERS)}"
        )
    return [PEERS[name] for name in dict.fromkeys(names)]


def first_available(*names: str) -> Peer:
    """Returns the first of these peers that can be used here.

    Raises:
        DeviceError: None can be used; the message has the reason for each.
    """
    reasons = []
    for peer in find_peers(list(names)):
        if peer.is_available:
            return peer
        reasons.append(f"{peer.name}: {peer.why_missing()}")
    raise DeviceError(f"no {' or '.join(names)} here ({'; '.join(reasons)})")
