"""The forward with FP8 tensors, beside the forward with 16-bit tensors."""

from __future__ import annotations

from functools import partial

import flashsmith
from flashsmith.configs import ForwardKernelConfig
from flashsmith.lab.bench.operations.base import OURS, OperationBench, Run
from flashsmith.lab.bench.operations.fp8_inputs import Fp8Inputs
from flashsmith.lab.bench.operations.fp8_peers import FP8_PEERS


def _in_16_bits(given: Fp8Inputs) -> Run:
    return partial(flashsmith.attention, *given.wide.values(), causal=given.causal)


def _of_config(config: ForwardKernelConfig, given: Fp8Inputs) -> Run:
    keywords = given.given_to(config)
    return partial(flashsmith.attention, **keywords, causal=given.causal, config=config)


FP8_FORWARD_BENCH = OperationBench(
    prepare=Fp8Inputs,
    ours={f"{OURS} BF16": _in_16_bits},
    kernels=ForwardKernelConfig.operation,
    of_config=_of_config,
    peers=FP8_PEERS,
)
