"""The problems of variants.py, and how we and the peers run each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import flashsmith
from flashsmith.configs import CAUSAL, FULL, DType, Workload
from flashsmith.configs.sm80.family import SM80_FORWARD
from flashsmith.gpus import count_multiprocessors
from flashsmith.lab.bench import fa3
from flashsmith.lab.bench.peers import PEERS
from flashsmith.problem import Problem

SKEWED = (8192, 4096, 2048, 2048, 1024, 1024, 512, 512, 256, 256, 128, 128, 96, 64, 33, 17)

Run = Callable[[], torch.Tensor]


@dataclass
class Case:
    """One problem: how we and the peers run it."""

    group: str
    name: str
    flop: float
    ours: Run
    peers: dict[str, Run] = field(default_factory=dict)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def fa3_run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **arguments: Any) -> Run:
    operators = fa3.load_operators()
    return lambda: operators.fwd(q, k, v, softmax_scale=q.shape[-1] ** -0.5, **arguments)[0]


def flex_run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score_mod: Any) -> Run:
    """Causal, compiled by torch."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.compiler.reset()
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    n = q.shape[1]
    mask = create_block_mask(lambda _b, _h, i, j: i >= j, None, None, n, n, device="cuda")
    heads_first = [t.transpose(1, 2) for t in (q, k, v)]
    return lambda: compiled(*heads_first, score_mod=score_mod, block_mask=mask).transpose(1, 2)


def dense_peers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    if not fa3.why_missing():
        runs["fa3"] = fa3_run(q, k, v, is_causal=causal)
    if q.shape[2] == k.shape[2] and (q.shape[1] == k.shape[1] or not causal):
        for name in ("cudnn", "fa2"):
            if PEERS[name].is_available:
                runs[name] = PEERS[name].make(q, k, v, causal)  # type: ignore[assignment]
    return runs


def dense_cases() -> Iterator[Case]:
    """Small grids, odd lengths, shared heads, and lengths that differ."""
    small = [(1, 16, 16, n, n) for n in (256, 512, 1024, 2048, 4096)]
    small += [(2, 16, 16, 1024, 1024), (4, 16, 16, 512, 512)]
    odd = [(16, 16, 16, 777, 777), (8, 16, 16, 1536, 1536), (4, 16, 16, 3000, 3000)]
    shared = [(4, 32, 8, 4096, 4096), (4, 32, 4, 4096, 4096), (1, 32, 8, 8192, 8192)]
    unequal = [(1, 32, 8, 1024, 8192), (1, 32, 8, 512, 8192)]
    groups = {"small": small, "odd": odd, "gqa": shared, "unequal": unequal}
    for d in (64, 128, 256):
        for group, shapes in groups.items():
            for batch, heads, heads_kv, n_q, n_k in shapes:
                for causal in (False, True):
                    q = randn(batch, n_q, heads, d)
                    k, v = randn(batch, n_k, heads_kv, d), randn(batch, n_k, heads_kv, d)
                    scores = n_q * n_k - (n_q * (n_q - 1) / 2 if causal else 0)
                    name = f"d{d} {batch}x{heads}/{heads_kv}x{n_q}/{n_k} " + (
                        "causal" if causal else "full"
                    )
                    yield Case(
                        group,
                        name,
                        4 * d * batch * heads * scores,
                        lambda q=q, k=k, v=v, c=causal: flashsmith.attention(q, k, v, causal=c),
                        dense_peers(q, k, v, causal),
                    )


def window_cases() -> Iterator[Case]:
    """A sliding window of 1024 keys at 16k, beside no window."""
    n, window = 16384, 1024
    for d, heads in ((64, 32), (128, 16), (256, 8)):
        q, k, v = (randn(1, n, heads, d) for _ in range(3))
        visible = n * window - window * (window - 1) / 2
        peers = {}
        if not fa3.why_missing():
            sides = {"window_size_left": window - 1, "window_size_right": 0}
            peers["fa3"] = fa3_run(q, k, v, is_causal=True, **sides)
        yield Case(
            "window",
            f"d{d} 1x{heads}x{n} window {window}",
            4 * d * heads * visible,
            lambda q=q, k=k, v=v: flashsmith.attention(
                q, k, v, causal=True, window_size=(window - 1, 0)
            ),
            peers,
        )
        yield Case(
            "window",
            f"d{d} 1x{heads}x{n} causal",
            4 * d * heads * n * (n + 1) / 2,
            lambda q=q, k=k, v=v: flashsmith.attention(q, k, v, causal=True),
            dense_peers(q, k, v, True),
        )


def scores_of(lengths: Sequence[int], causal: bool) -> float:
    """Of a head: what a mask leaves of the squares of sequences."""
    return sum(n * (n + 1) / 2 if causal else n * n for n in lengths)


def packed_run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    places: torch.Tensor,
    n: int,
    causal: bool,
    **arguments: Any,
) -> Run:
    arguments |= {"cu_seqlens_q": places, "cu_seqlens_k": places}
    arguments |= {"max_seqlen_q": n, "max_seqlen_k": n}
    return lambda: flashsmith.attention(q, k, v, causal=causal, **arguments)  # type: ignore[return-value]


def packed_cases() -> Iterator[Case]:
    """Sequences of one length, and of a skewed mix of lengths."""
    mixes = {"skewed": SKEWED, "equal": (1024,) * 16}
    for d, heads, heads_kv in ((64, 32, 8), (128, 16, 16), (128, 32, 8), (256, 8, 8)):
        for mix, lengths in mixes.items():
            total = sum(lengths)
            q = randn(total, heads, d)
            k, v = randn(total, heads_kv, d), randn(total, heads_kv, d)
            places = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
            for causal in (False, True):
                scores = scores_of(lengths, causal)
                peers = {}
                if not fa3.why_missing():
                    sizes = {"max_seqlen_q": max(lengths), "max_seqlen_k": max(lengths)}
                    cu = {"cu_seqlens_q": places, "cu_seqlens_k": places}
                    peers["fa3"] = fa3_run(q, k, v, is_causal=causal, **cu, **sizes)
                yield Case(
                    "packed",
                    f"d{d} {heads}/{heads_kv} {mix} " + ("causal" if causal else "full"),
                    4 * d * heads * scores,
                    packed_run(q, k, v, places, max(lengths), causal),
                    peers,
                )


def score_kinds(n: int, heads: int) -> dict[str, dict[str, Any]]:
    """What is done to scores -> arguments of ``attention``."""
    slopes = torch.rand(heads, device="cuda")
    bias = randn(1, heads, n, n)
    return {
        "plain": {},
        "softcap": {"softcap": 30.0},
        "alibi": {"alibi_slopes": slopes},
        "sinks": {"sinks": torch.randn(heads, device="cuda")},
        "bias": {"bias": bias},
        "score_mod: plain": {},
        "score_mod: softcap": {"score_mod": lambda s, _b, _h, _i, _j: 30.0 * torch.tanh(s / 30.0)},
        "score_mod: alibi": {"score_mod": lambda s, _b, h, i, j: s - slopes[h] * (i - j).abs()},
        "score_mod: a factor": {
            "score_mod": lambda s, _b, _h, _i, j: torch.where(j % 2 == 0, s, 0.5 * s)
        },
        "score_mod: bias": {"score_mod": lambda s, _b, h, i, j: s + bias[0, h, i, j]},
    }


def score_cases() -> Iterator[Case]:
    """What is done to scores, beside the plain kernel; FlexAttention takes functions."""
    n, heads = 4096, 16
    for d in (64, 128):
        q, k, v = (randn(4, n, heads, d) for _ in range(3))
        flop = 4 * d * 4 * heads * n * (n + 1) / 2
        kinds = score_kinds(n, heads)
        for name, arguments in kinds.items():
            peers = {}
            if name == "bias":
                peers["flex"] = flex_run(q, k, v, kinds["score_mod: bias"]["score_mod"])
            elif name.startswith("score_mod"):
                peers["flex"] = flex_run(q, k, v, arguments.get("score_mod"))
            if not fa3.why_missing() and name == "plain":
                peers["fa3"] = fa3_run(q, k, v, is_causal=True)
            yield Case(
                "score",
                f"d{d} 4x{heads}x{n} causal {name}",
                flop,
                lambda q=q, k=k, v=v, a=arguments: flashsmith.attention(q, k, v, causal=True, **a),
                peers,
            )


def score_gradient_cases() -> Iterator[Case]:
    """The backward alone of the same; no gradient of a bias, which FlexAttention adds up slowly."""
    n, heads = 4096, 16
    for d in (64, 128):
        q, k, v = (randn(4, n, heads, d).requires_grad_() for _ in range(3))
        do = randn(4, n, heads, d)
        kinds = score_kinds(n, heads)
        for name, arguments in kinds.items():
            peers = {}
            if name.startswith("score_mod"):
                o = flex_run(q, k, v, arguments.get("score_mod"))()
                peers["flex"] = dq_run(o, (q, k, v), do)
            yield Case(
                "score_gradients",
                f"d{d} 4x{heads}x{n} causal {name}",
                10 * d * 4 * heads * n * (n + 1) / 2,
                dq_run(flashsmith.attention(q, k, v, causal=True, **arguments), (q, k, v), do),
                peers,
            )


def dq_run(o: torch.Tensor, inputs: Sequence[torch.Tensor], do: torch.Tensor) -> Run:
    """The backward of ``o`` by all inputs; returns the first's gradient."""
    return lambda: torch.autograd.grad(o, inputs, do, retain_graph=True)[0]


def fa2_packed_run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, places: torch.Tensor, n: int, causal: bool
) -> Run:
    forward = torch.ops.aten._flash_attention_forward
    return lambda: forward(q, k, v, places, places, n, n, 0.0, causal, False)[0]  # type: ignore[no-any-return]


def sm80_config(
    q: torch.Tensor, heads_kv: int, batch: int, n: int, causal: bool
) -> flashsmith.FlashForwardKernelConfig:
    """What the sm80 family takes by rule."""
    heads, d_head = q.shape[-2:]
    problem = Problem(DType.BF16, d_head, batch, heads, heads_kv, n, n)
    multiprocessors = count_multiprocessors(torch.cuda.get_device_name())
    workload = Workload(problem, CAUSAL if causal else FULL)
    return SM80_FORWARD.choose(workload, multiprocessors)  # type: ignore[return-value]


def sm80_cases() -> Iterator[Case]:
    """The sm80 family by rule beside FlashAttention-2: equal heads, shared heads, packed."""
    for d, heads in ((64, 32), (128, 16), (256, 8)):
        for causal in (False, True):
            mask = "causal" if causal else "full"
            for heads_kv, n in ((heads, 512), (heads, 2048), (heads, 8192), (heads // 4, 4096)):
                batch = 16384 // n
                q = randn(batch, n, heads, d)
                k, v = randn(batch, n, heads_kv, d), randn(batch, n, heads_kv, d)
                config = sm80_config(q, heads_kv, batch, n, causal)
                yield Case(
                    "sm80",
                    f"d{d} {batch}x{heads}/{heads_kv}x{n} {mask}",
                    4 * d * heads * scores_of([n] * batch, causal),
                    lambda q=q, k=k, v=v, c=causal, cfg=config: flashsmith.attention(
                        q, k, v, causal=c, config=cfg
                    ),
                    {"fa2": PEERS["fa2"].make(q, k, v, causal)},
                )
            total, longest = sum(SKEWED), max(SKEWED)
            q, k, v = (randn(total, heads, d) for _ in range(3))
            places = torch.tensor([0, *SKEWED], device="cuda").cumsum(0).int()
            config = sm80_config(q, heads, len(SKEWED), longest, causal)
            yield Case(
                "sm80",
                f"d{d} {heads}/{heads} skewed {mask}",
                4 * d * heads * scores_of(SKEWED, causal),
                packed_run(q, k, v, places, longest, causal, config=config),
                {"fa2": fa2_packed_run(q, k, v, places, longest, causal)},
            )


GROUPS: Mapping[str, Callable[[], Iterator[Case]]] = {
    "dense": dense_cases,
    "window": window_cases,
    "packed": packed_cases,
    "score": score_cases,
    "score_gradients": score_gradient_cases,
    "sm80": sm80_cases,
}
