"""The gradients of attention alone, and a training step's: the forward with its gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

import flashsmith
from flashsmith.configs import BackwardKernelConfig, DType
from flashsmith.configs.sm80.backward_space import heuristic as sm80_heuristic
from flashsmith.configs.sm80.sums_backward_space import heuristic as sums_heuristic
from flashsmith.lab.bench import fa3
from flashsmith.lab.bench.operations.base import OURS, OperationBench, OperationPeer, Run
from flashsmith.lab.bench.operations.inputs import Inputs
from flashsmith.lab.bench.operations.scores import flex_score_mod
from flashsmith.lab.bench.peers import PEERS, flex_run

SAME, SM80, SUMS = f"{OURS} deterministic", f"{OURS} sm80", f"{OURS} sm80 sums"
FA3_SAME = "fa3_deterministic"
_BESIDE = {SAME: (FA3_SAME,), SM80: ("fa2",), SUMS: ("fa2",)}
_HEAD_START = 1e-3  # seconds, because autograd costs the host more than the default
_PAUSE = 0.01  # seconds, so that a candidate that draws much power does not slow down the next


def _leaves(given: Inputs) -> tuple[torch.Tensor, ...]:
    return tuple(t.detach().clone().requires_grad_() for t in given.qkv)


def _attend(given: Inputs, leaves: tuple[torch.Tensor, ...], deterministic: bool) -> Any:
    return flashsmith.attention(*leaves, **given.keywords, deterministic=deterministic)


def _gradients(o: torch.Tensor, leaves: tuple[torch.Tensor, ...], do: torch.Tensor) -> Run:
    return lambda: torch.autograd.grad(o, leaves, do, retain_graph=True)


def _ours(given: Inputs, deterministic: bool) -> Run:
    leaves = _leaves(given)
    return _gradients(_attend(given, leaves, deterministic), leaves, given.do)


def _our_step(given: Inputs, deterministic: bool) -> Run:
    leaves = _leaves(given)
    return lambda: torch.autograd.grad(_attend(given, leaves, deterministic), leaves, given.do)


def _of_config(config: BackwardKernelConfig, given: Inputs) -> Run:
    o, lse = flashsmith.attention(*given.qkv, **given.keywords, return_lse=True)

    def run() -> tuple[torch.Tensor, ...]:
        found: Any = flashsmith.backward(config, given.do, *given.qkv, o, lse, **given.keywords)
        return found.q, found.k, found.v

    return run


def _by_heuristic(heuristic: Callable[[DType, int], BackwardKernelConfig], given: Inputs) -> Run:
    problem = given.case.workload.problem
    return _of_config(heuristic(problem.dtype, problem.d_head), given)


def _fa3(given: Inputs, deterministic: bool, step: bool) -> Run | None:
    too_large = deterministic and given.q.shape[-1] >= 256  # for FA3's build
    if given.case.score != "plain" or too_large:
        return None
    operators = fa3.load_operators()
    left, right = given.semantics.get("window_size", (-1, -1))
    keywords = given.packing | {
        "softmax_scale": given.q.shape[-1] ** -0.5,
        "is_causal": given.semantics["causal"],
        "window_size_left": left,
        "window_size_right": right,
    }

    def forward() -> Any:
        return operators.fwd(*given.qkv, **keywords)[:2]

    def backward(o: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = operators.bwd(given.do, *given.qkv, o, lse, **keywords, deterministic=deterministic)
        return tuple(found[:3])

    return (lambda: backward(*forward())) if step else partial(backward, *forward())


def _fa2(given: Inputs, step: bool) -> Run | None:
    """Returns a run of torch's operators for packed sequences, else of autograd."""
    if given.case.window or given.case.score != "plain":
        return None
    if not given.packing:
        return None if step else _by_autograd("fa2", given)
    aten, offsets, n = torch.ops.aten, given.offsets, given.packing["max_seqlen_q"]
    lengths, causal = (offsets, offsets, n, n, 0.0), given.semantics["causal"]

    def forward() -> Any:
        return aten._flash_attention_forward(*given.qkv, *lengths, causal, False)[:4]

    def backward(o: torch.Tensor, lse: torch.Tensor, *rng: torch.Tensor) -> Any:
        of_forward = (given.do, *given.qkv, o, lse)
        return tuple(aten._flash_attention_backward(*of_forward, *lengths, causal, *rng))

    return (lambda: backward(*forward())) if step else partial(backward, *forward())


def _by_autograd(name: str, given: Inputs) -> Run | None:
    if not given.is_plain or given.q.shape[-2] != given.k.shape[-2]:
        return None
    q, k, v = leaves = _leaves(given)
    o = PEERS[name].make(q, k, v, given.semantics["causal"])()
    return _gradients(o, leaves, given.do)


def _flex(given: Inputs) -> Run | None:
    if not given.case.score.startswith("score_mod"):
        return None
    q, k, v = leaves = _leaves(given)
    return _gradients(flex_run(q, k, v, True, flex_score_mod(given.semantics))(), leaves, given.do)


def _peers(step: bool) -> Mapping[str, OperationPeer[Inputs]]:
    return {
        "fa3": OperationPeer(PEERS["fa3"], partial(_fa3, deterministic=False, step=step)),
        FA3_SAME: OperationPeer(PEERS["fa3"], partial(_fa3, deterministic=True, step=step)),
        "fa2": OperationPeer(PEERS["fa2"], partial(_fa2, step=step)),
    }


BACKWARD_BENCH = OperationBench(
    prepare=partial(Inputs, gradients=True, products=2.5),  # five products, the forward has two
    ours={
        OURS: partial(_ours, deterministic=False),
        SAME: partial(_ours, deterministic=True),
        SM80: partial(_by_heuristic, sm80_heuristic),
        SUMS: partial(_by_heuristic, sums_heuristic),
    },
    kernels=BackwardKernelConfig.operation,
    of_config=_of_config,
    peers={
        **_peers(step=False),
        "cudnn": OperationPeer(PEERS["cudnn"], partial(_by_autograd, "cudnn")),
        "flex": OperationPeer(PEERS["flex"], _flex),
    },
    beside=_BESIDE,
    head_start=_HEAD_START,
    pause=_PAUSE,
)

STEP_BENCH = OperationBench(
    prepare=partial(Inputs, gradients=True, products=3.5),
    ours={
        OURS: partial(_our_step, deterministic=False),
        SAME: partial(_our_step, deterministic=True),
    },
    kernels="",  # a step has kernels of two operations
    of_config=_of_config,
    peers=_peers(step=True),
    beside=_BESIDE,
    head_start=_HEAD_START,
    pause=_PAUSE,
)
