"""The forward: dense or packed, with masks, windows and modified scores."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import flashsmith
from flashsmith.configs import ForwardKernelConfig
from flashsmith.configs.sm80.family import SM80_FORWARD
from flashsmith.gpus import count_sms
from flashsmith.lab.bench import fa3
from flashsmith.lab.bench.operations.base import OURS, OperationBench, OperationPeer, Run
from flashsmith.lab.bench.operations.inputs import Inputs
from flashsmith.lab.bench.operations.scores import flex_score_mod
from flashsmith.lab.bench.peers import PEERS, flex_run
from flashsmith.selection.select import gpu_of

SM80 = f"{OURS} sm80"


def _ours(given: Inputs, config: ForwardKernelConfig | None = None) -> Run:
    return partial(flashsmith.attention, *given.qkv, **given.keywords, config=config)


def _sm80(given: Inputs) -> Run:
    """Returns a run of the kernel that the heuristic of the sm80 family chooses."""
    gpu, _ = gpu_of(given.q.device)
    num_sms = count_sms(gpu) if gpu else None
    config: Any = SM80_FORWARD.choose(given.case.workload, num_sms)
    return _ours(given, config)


def _of_config(config: ForwardKernelConfig, given: Inputs) -> Run:
    return _ours(given, config)


def _fa3(given: Inputs) -> Run | None:
    if given.case.score != "plain":
        return None
    left, right = given.semantics.get("window_size", (-1, -1))
    run = partial(
        fa3.load_operators().fwd,
        *given.qkv,
        softmax_scale=given.q.shape[-1] ** -0.5,
        is_causal=given.semantics["causal"],
        window_size_left=left,
        window_size_right=right,
        **given.packing,
    )
    return lambda: run()[0]


def _dense(name: str, given: Inputs) -> Run | None:
    """Returns a run of a peer without windows, scores and varlen, whose causal diagonal begins at
    the first key; None for other cases."""
    causal = given.semantics["causal"]
    if not given.is_plain or (causal and given.q.shape[1] != given.k.shape[1]):
        return None
    return PEERS[name].make(*given.qkv, causal)


def _fa2(given: Inputs) -> Run | None:
    if not given.packing or given.case.window or given.case.score != "plain":
        return _dense("fa2", given)
    forward: Any = torch.ops.aten._flash_attention_forward
    offsets, n, causal = given.offsets, given.packing["max_seqlen_q"], given.semantics["causal"]
    return lambda: forward(*given.qkv, offsets, offsets, n, n, 0.0, causal, False)[0]


def _flex(given: Inputs) -> Run | None:
    is_function = given.case.score.startswith("score_mod")
    if not given.semantics["causal"] or not (is_function or given.case.score == "bias"):
        return None
    return flex_run(*given.qkv, True, flex_score_mod(given.semantics))


FORWARD_BENCH = OperationBench(
    prepare=Inputs,
    ours={OURS: _ours, SM80: _sm80},
    kernels=ForwardKernelConfig.operation,
    of_config=_of_config,
    peers={
        "fa3": OperationPeer(PEERS["fa3"], _fa3),
        "cudnn": OperationPeer(PEERS["cudnn"], partial(_dense, "cudnn")),
        "fa2": OperationPeer(PEERS["fa2"], _fa2),
        "fa4": OperationPeer(PEERS["fa4"], partial(_dense, "fa4")),
        "flex": OperationPeer(PEERS["flex"], _flex),
    },
    beside={SM80: ("fa2",)},
)
