"""A bench has the tensors of a workload, on which the tuner checks and times kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from flashsmith.configs import (
    BackwardKernelConfig,
    DecodeKernelConfig,
    ForwardKernelConfig,
    KernelConfig,
    KernelId,
    Workload,
)
from flashsmith.configs.operation import Operation
from flashsmith.configs.registry import BACKWARD, DECODE, FORWARD
from flashsmith.configs.workload import BackwardWorkload, DecodeWorkload, WorkTiles
from flashsmith.gpus import count_sms
from flashsmith.lab.bench.operations.forward_kernels import Checker
from flashsmith.lab.bench.runner import check
from flashsmith.lab.soak import Meaning, SoakCase, make_launch, prepare_gradients
from flashsmith.lab.soak.launches import SoakLaunch
from flashsmith.ops.checks import FP8
from flashsmith.ops.decode import decode
from flashsmith.reference import Comparison, compare, reference_by_head
from flashsmith.selection.select import gpu_of

Run = Callable[[], object]
C_contra = TypeVar("C_contra", bound=KernelConfig, contravariant=True)


class Bench(Protocol[C_contra]):
    """A bench has the tensors of one shape."""

    def check(self, config: C_contra) -> Run | str:
        """Runs a kernel once, and returns a function that runs it again, or what is wrong with it.

        Raises GpuLostError: The kernel broke the GPU context.
        """


def benches_of(
    operation: Operation[Any, Any],
) -> Callable[[Any, str], Sequence[Callable[[], Bench[Any]]]]:
    """Returns the function that lists the makers of benches for an operation's workload."""
    makers: dict[str, Callable[[Any, str], Sequence[Callable[[], Bench[Any]]]]] = {
        FORWARD.name: _forward,
        BACKWARD.name: _backward,
        DECODE.name: _decode,
    }
    return makers[operation.name]


def _forward(workload: Workload, device: str) -> list[Callable[[], ForwardBench]]:
    return [partial(ForwardBench, workload, device)]


def _backward(workload: BackwardWorkload, device: str) -> list[Callable[[], BackwardBench]]:
    return [partial(BackwardBench, workload, device)]


def _decode(workload: DecodeWorkload, device: str) -> list[Callable[[], DecodeBench]]:
    num_sms = count_sms(gpu_of(torch.device(device))[0] or "")
    shapes = shapes_for(workload, num_sms)
    return [partial(DecodeBench, workload, shape, device) for shape in shapes]


class ForwardBench:
    def __init__(self, workload: Workload, device: str) -> None:
        self._checker, self._device = Checker(workload, device), device

    def check(self, config: ForwardKernelConfig) -> Run | str:
        make = partial(self._checker.prepare, config)
        checked = check(str(config), make, self._checker.compare, self._device)
        return checked.run or f"{checked.status}: {checked.reason}"


class BackwardBench:
    """The bench compares the gradients of random q, k and v with float64."""

    def __init__(self, workload: BackwardWorkload, device: str) -> None:
        case = SoakCase(workload.problem, Meaning(causal=workload.variant.causal))
        self._workload, self._prepared = workload, prepare_gradients(case, device)

    def check(self, config: BackwardKernelConfig) -> Run | str:
        def make() -> Callable[[], SoakLaunch]:
            launch = make_launch(kernel, self._prepared)
            launch.results.poison(math.nan)

            def run() -> SoakLaunch:
                launch.call(launch.workspace())
                return launch

            return run

        kernel = KernelId(config, self._workload.variant)
        checked = check(kernel.name, make, SoakLaunch.compare_worst, self._prepared.do.device.type)
        return checked.run or checked.reason


class Shape(NamedTuple):
    """A batch of requests of equal lengths."""

    batch: int
    n_keys: int


_HEADS_KV, _SHARING = 8, 4
_FEW_ROWS = 16  # up to here a request has one query
_FEW_TILES = (Shape(1, 2048), Shape(1, 8192), Shape(1, 32768))
_SOME_TILES = (Shape(4, 2048), Shape(4, 8192))
_ANY_TILES = (*_FEW_TILES, Shape(16, 4096))
_KEYS_OF_FILLING, _KEYS_OF_MANY = (1024, 4096), (128, 512, 2048)


def shapes_for(workload: DecodeWorkload, num_sms: int) -> tuple[Shape, ...]:
    """Returns the shapes on which a workload is timed; together they stand for all lengths."""
    filling, several = (
        tuple(Shape(n * num_sms // _HEADS_KV, n_keys) for n_keys in _KEYS_OF_FILLING)
        for n in (1, 2)
    )
    many = tuple(Shape(num_sms, n_keys) for n_keys in _KEYS_OF_MANY)
    return {
        WorkTiles.ANY: _ANY_TILES,
        WorkTiles.FEW: _FEW_TILES,
        WorkTiles.SOME: _SOME_TILES,
        WorkTiles.FILLING: filling,
        WorkTiles.SEVERAL: several,
        WorkTiles.MANY: many,
    }[workload.tiles]


class DecodeBench:
    """The bench has a KV cache of random numbers, and queries over it."""

    def __init__(self, workload: DecodeWorkload, shape: Shape, device: str) -> None:
        dtype, self._shape = workload.dtype.to_torch_dtype(), shape
        n_queries = 1 if workload.rows <= _FEW_ROWS else workload.rows // _SHARING
        of_keys = (shape.batch, shape.n_keys, _HEADS_KV, workload.d_head)
        of_q = (shape.batch, n_queries, _HEADS_KV * _SHARING, workload.d_head)
        self.q, self.k, self.v = (
            torch.randn(*sizes, dtype=dtype, device=device) for sizes in (of_q, of_keys, of_keys)
        )
        if workload.fp8_cache:
            self.k, self.v = self.k.to(FP8), self.v.to(FP8)
        self.k_scale = self.v_scale = None
        if workload.per_token_scale:
            self.k_scale, self.v_scale = torch.ones(2, *of_keys[:3], device=device)
        self.lengths = torch.full((shape.batch,), shape.n_keys, dtype=torch.int32, device=device)
        self.ends = [0, shape.batch - 1]  # only the first and last requests are checked
        of_ends = [
            torch.stack([t[i].to(dtype) for i in self.ends]) for t in (self.q, self.k, self.v)
        ]
        self.exact = reference_by_head(*of_ends, compute=torch.float32)
        self.low_precision = reference_by_head(*of_ends, compute=dtype)

    def run(self, config: DecodeKernelConfig) -> torch.Tensor:
        o = decode(
            config, self.q, self.k, self.v, cache_seqlens=self.lengths, k_scale=self.k_scale,
            v_scale=self.v_scale,
        )  # fmt: skip
        assert isinstance(o, torch.Tensor)
        return o

    def check(self, config: DecodeKernelConfig) -> Run | str:
        def compare_ends(o: torch.Tensor) -> Comparison:
            return compare(o[self.ends], self.exact, self.low_precision)

        make = partial(partial, self.run, config)
        checked = check(config.short_form(), make, compare_ends, self.q.device.type)
        where = f"{self._shape.batch} x {self._shape.n_keys} keys"
        return checked.run or f"{where}: {checked.reason}"
