"""Kernels of decode on the GPU: built together, checked, timed in turn, soaked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch

from flashsmith.configs import DecodeKernelConfig, KernelId
from flashsmith.configs.workload import DecodeWorkload
from flashsmith.jit import Progress
from flashsmith.lab.bench.candidates import why_failed, why_wrong
from flashsmith.lab.soak import soaked_kernels
from flashsmith.lab.tuning.lab import Timer, load_buildable, soak_at_seams, time_on_gpu
from flashsmith.ops.checks import FP8
from flashsmith.ops.decode import decode
from flashsmith.reference import compare, reference_by_head
from flashsmith.runtime.device import target_of

DecodePlan = Mapping[DecodeWorkload, Sequence[DecodeKernelConfig]]


class Shape(NamedTuple):
    """Requests of equal lengths."""

    batch: int
    n_keys: int


class Measurements(NamedTuple):
    """Of configurations of one workload: why some are wrong, and the others' microseconds, as
    geometric means over shapes."""

    wrong: dict[DecodeKernelConfig, str]
    microseconds: dict[DecodeKernelConfig, float]


_HEADS_KV, _SHARING = 8, 4
_FEW_ROWS = 16  # up to which a request has one query
_FEW_TILES = (Shape(1, 2048), Shape(1, 8192), Shape(1, 32768), Shape(16, 4096))
_KEYS_OF_MANY = (128, 512, 2048)


def shapes_for(workload: DecodeWorkload, multiprocessors: int) -> tuple[Shape, ...]:
    """What stands for all lengths."""
    if workload.many_tiles:
        return tuple(Shape(multiprocessors, n_keys) for n_keys in _KEYS_OF_MANY)
    return _FEW_TILES


class DecodeLab:
    """The kernels of a plan on one device.

    shapes: What a workload is timed on.
    """

    def __init__(
        self,
        shapes: Callable[[DecodeWorkload], Sequence[Shape]],
        device: str = "cuda",
        timer: Timer = time_on_gpu,
    ) -> None:
        self._shapes, self._device, self._timer = shapes, device, timer
        self._target = target_of(torch.device(device))
        self._unbuilt: Mapping[KernelId, str] = {}

    def build(self, plan: DecodePlan, progress: Progress) -> None:
        """Has the kernels of a plan in one loaded library, without those that cannot be built."""
        instances = {KernelId(config) for configs in plan.values() for config in configs}
        self._unbuilt = load_buildable(sorted(instances), self._target, progress)

    def measure(
        self, workload: DecodeWorkload, configs: Sequence[DecodeKernelConfig], repeats: int
    ) -> Measurements:
        """Checks configurations on each shape, and times in turn those that are right on all.

        Raises GpuLostError when a kernel took the GPU with it.
        """
        unbuilt = {config: self._unbuilt.get(KernelId(config)) for config in configs}
        wrong = {config: why for config, why in unbuilt.items() if why}
        logarithms: dict[DecodeKernelConfig, list[float]] = {}
        for shape in self._shapes(workload):
            call = _Call(workload, shape, self._device)
            for config in configs:
                if config not in wrong and (why := call.check(config)):
                    wrong[config] = f"{shape.batch} x {shape.n_keys} keys: {why}"
            right = [config for config in configs if config not in wrong]
            if not right:
                break
            runs = {str(config): partial(call.run, config) for config in right}
            times = self._timer(runs, repeats)
            for config in right:
                logarithms.setdefault(config, []).append(math.log(1e3 * times[str(config)].ms))
        means = {
            config: math.exp(sum(values) / len(values))
            for config, values in logarithms.items()
            if config not in wrong
        }
        return Measurements(wrong, means)

    def soak(self, config: DecodeKernelConfig) -> str | None:
        """Why a configuration is wrong at the seams of its tiles, in the variants that ``soak``
        takes of it; None if it is nowhere."""
        kernels = soaked_kernels([config])
        wrong = load_buildable(kernels, self._target, None) or soak_at_seams(kernels, self._device)
        return next(iter(wrong.values()), None)


class _Call:
    """One shape's tensors, and what comes of them."""

    def __init__(self, workload: DecodeWorkload, shape: Shape, device: str) -> None:
        dtype = workload.dtype.to_torch_dtype()
        n_queries = 1 if workload.rows <= _FEW_ROWS else workload.rows // _SHARING
        of_keys = (shape.batch, shape.n_keys, _HEADS_KV, workload.d_head)
        of_q = (shape.batch, n_queries, _HEADS_KV * _SHARING, workload.d_head)
        self.q, self.k, self.v = (
            torch.randn(*sizes, dtype=dtype, device=device) for sizes in (of_q, of_keys, of_keys)
        )
        if workload.fp8_cache:
            self.k, self.v = self.k.to(FP8), self.v.to(FP8)
        self.k_scale = self.v_scale = None
        if workload.token_scales:
            self.k_scale, self.v_scale = torch.ones(2, *of_keys[:3], device=device)
        self.lengths = torch.full((shape.batch,), shape.n_keys, dtype=torch.int32, device=device)
        self.ends = [0, shape.batch - 1]  # the requests that are checked
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

    def check(self, config: DecodeKernelConfig) -> str | None:
        try:
            found = compare(self.run(config)[self.ends], self.exact, self.low_precision)
        except Exception as error:
            return why_failed(config.short_form(), error, self.q)
        return None if found.ok else why_wrong(found)
