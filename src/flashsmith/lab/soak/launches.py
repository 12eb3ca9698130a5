"""Launches a kernel on a prepared case, as often as needed, and compares its results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from random import Random

import torch

from flashsmith.configs import DecodeKernelConfig, ForwardKernelConfig, KernelConfig, KernelId
from flashsmith.lab.soak.case import SoakCase
from flashsmith.lab.soak.decoding import SCALES, draw_cache, quantised
from flashsmith.lab.soak.gradients import PreparedGradients, prepare_gradients
from flashsmith.lab.soak.layout import Results
from flashsmith.lab.soak.prepared import PreparedCase, Truth, prepare, truth_of
from flashsmith.ops.checks import FP8
from flashsmith.ops.launch import kernel_for
from flashsmith.reference import Comparison
from flashsmith.runtime import (
    BackwardKernel,
    CallArgs,
    DecodeKernel,
    DecodeTensors,
    GradientTensors,
    Kernel,
    Splitting,
    emulation,
    find_backward,
    find_decode,
)
from flashsmith.runtime.call_args import NO_SCALES, Scales
from flashsmith.runtime.device import target_of
from flashsmith.runtime.loaded import LoadedKernel
from flashsmith.runtime.plan import Plan
from flashsmith.runtime.workspace import counters_for, workspace_for

Prepared = PreparedCase | PreparedGradients

# A bound for the relative error of the polynomials that some configurations use for 2^x.
_POLYNOMIAL_ERROR = 2.0**-13
# If the reference lags far behind the maximum, the difference of both is rounded a few times.
_STALE_ERROR = 2.0**-22
_DENSE = 4  # dimensions
_ALL_ONES = 255  # bytes that are NaN in all floating-point types


class SoakLaunch(ABC):
    """A kernel on the tensors of a case.

    Attributes:
        case: The case that the tensors were made for.
        results: The tensors that the kernel writes.
        used: For some results, which elements are written at all.
        read: The tensors that the kernel only reads, by name; each with a copy.
    """

    case: SoakCase
    results: Results
    used: Mapping[str, torch.Tensor]
    read: Mapping[str, tuple[torch.Tensor, torch.Tensor]]

    @abstractmethod
    def compare(self) -> dict[str, Comparison]:
        """Compares the results, which were NaN before the launch; without a truth, returns {}."""

    def compare_worst(self) -> Comparison:
        """Returns the result that is the farthest off beside what it may differ by."""
        found = self.compare()
        name = max(found, key=lambda name: found[name].ratio)
        return replace(found[name], worst=f"{name} {found[name].worst}")

    @abstractmethod
    def plan(self) -> Plan: ...

    @abstractmethod
    def call(self, workspace: torch.Tensor | None) -> None: ...

    def __init__(self, kernel: LoadedKernel, device: torch.device) -> None:
        self.kernel, self.device = kernel, device

    def workspace(self) -> torch.Tensor | None:
        """Returns new workspace for one call."""
        return workspace_for(self.plan(), self.device)

    def run(self, seed: int = 0) -> torch.Tensor | None:
        """Launches, and returns the part of the workspace that has to be zero, or None.

        The rest of the workspace is filled with NaN before.
        """
        zeroed, workspace = self.plan().zeroed_bytes, self.workspace()
        if workspace is not None:
            workspace[zeroed:].fill_(_ALL_ONES)
        if self.device.type == "cuda":
            self.call(workspace)
        else:
            with emulation(self.kernel, seed=seed, count=False):
                self.call(workspace)
        return None if workspace is None else workspace[:zeroed]


def prepare_for(config: KernelConfig, case: SoakCase, device: str) -> Prepared:
    """Returns a case's tensors and truth for all kernels of ``config``'s operation."""
    if config.operation == "backward":
        return prepare_gradients(case, device)
    return prepare(case, device)


def make_launch(instance: KernelId, prepared: Prepared) -> SoakLaunch:
    """Returns a launch of the kernel, which is built if the cache lacks it; raises as the build."""
    if isinstance(prepared, PreparedGradients):
        return _Backward(instance, prepared)
    if instance.config.operation == "decode":
        return _Decode(instance, prepared)
    if instance.config.fp8_tensors:
        return _Fp8Forward(instance, prepared)
    return _Forward(instance, prepared)


def compare_result(
    config: ForwardKernelConfig, truth: Truth, o: torch.Tensor, lse: torch.Tensor
) -> tuple[Comparison, Comparison]:
    """Compares o and lse, which were NaN before; allows for a configuration's approximations."""
    return truth.compare(
        o,
        lse,
        error_of_exp=_POLYNOMIAL_ERROR if config.has_polynomials else 0.0,
        error_of_range=_STALE_ERROR if getattr(config, "stale_maximum", False) else 0.0,
    )


class _Forward(SoakLaunch):
    kernel: Kernel
    _scales = NO_SCALES

    def __init__(self, instance: KernelId, prepared: PreparedCase) -> None:
        placed, truth = prepared.placed, prepared.truth
        device = placed.q.device
        super().__init__(kernel_for(instance.config, instance.variant, device), device)
        self.case, self.results = prepared.case, placed.results
        self.used = {} if truth is None else {"o": truth.used, "lse": truth.lse_used}
        self.read = _inputs(prepared)
        self._prepared = prepared

    def compare(self) -> dict[str, Comparison]:
        truth, placed = self._prepared.truth, self._prepared.placed
        if truth is None:
            return {}
        found = compare_result(self.kernel.instance.config, truth, placed.o, placed.lse)
        return dict(zip(("o", "lse"), found, strict=True))

    def plan(self) -> Plan:
        placed = self._prepared.placed
        tensors = placed.q, placed.k, placed.v, placed.o
        return self.kernel.plan(*tensors, lse=placed.lse, extras=self._prepared.extras)

    def call(self, workspace: torch.Tensor | None) -> None:
        placed, extras, scale = self._prepared.placed, self._prepared.extras, self.case.scale
        self.kernel(
            placed.q, placed.k, placed.v, placed.o, scale,
            lse=placed.lse, workspace=workspace, scales=self._scales, extras=extras,
        )  # fmt: skip


class _Fp8Forward(_Forward):
    """A forward with contiguous FP8 tensors and scales, drawn by the case's seed."""

    def __init__(self, instance: KernelId, prepared: PreparedCase) -> None:
        config, inputs = instance.config, dict(zip("qkv", prepared.inputs, strict=True))
        rng, batch = Random(prepared.case.seed), prepared.case.problem.batch
        heads_kv = inputs["k"].shape[-2]
        exact, scales = dict(inputs), {}
        for name in sorted(config.fp8_tensors):
            t = inputs[name]
            # Heads of q that share a KV head share a scale.
            n_entries, sharing = batch if t.ndim == _DENSE else 1, t.shape[-2] // heads_kv
            of_heads = t.reshape(n_entries, t.shape[-3], heads_kv, sharing * t.shape[-1])
            small, scale, product = quantised(of_heads, rng.choice(SCALES))
            if scale is not None and scale.ndim > 1:
                scale = scale.expand(batch, heads_kv).contiguous()
            inputs[name], exact[name] = small.reshape(t.shape).to(FP8), product.reshape(t.shape)
            scales[f"{name}_scale"] = scale
        self._scales = Scales(**scales)
        truth = prepared.truth
        if truth is not None:
            weights_in = FP8 if "v" in config.fp8_tensors else config.dtype.to_torch_dtype()
            truth = truth_of(
                exact["q"], exact["k"], exact["v"], prepared.semantics, prepared.packing,
                weights_in=weights_in, fp8_scores=True,
            )  # fmt: skip
        q, k, v = (inputs[name] for name in "qkv")
        placed = replace(prepared.placed, q=q.clone(), k=k.clone(), v=v.clone())
        super().__init__(instance, replace(prepared, placed=placed, inputs=(q, k, v), truth=truth))


class _Decode(SoakLaunch):
    """A decode over a KV cache of slots or pages, drawn by the case's seed."""

    kernel: DecodeKernel

    def __init__(self, instance: KernelId, prepared: PreparedCase) -> None:
        placed, truth = prepared.placed, prepared.truth
        device = placed.q.device
        super().__init__(find_decode(instance, target_of(device)), device)
        self.case, self.results = prepared.case, placed.results
        config = instance.config
        assert isinstance(config, DecodeKernelConfig)
        cache = draw_cache(prepared, config.fp8_cache, config.per_token_scale, config.page_multiple)
        if truth is not None and cache.exact is not None:
            q = prepared.inputs[0]
            truth = truth_of(q, *cache.exact, prepared.semantics, prepared.packing)
        self.used = {} if truth is None else {"o": truth.used, "lse": truth.lse_used}
        self._how = Splitting(cache.splits)
        self._extras = prepared.extras._replace(seqused_k=cache.seqlens)
        self._tensors = DecodeTensors(
            placed.q, cache.k, cache.v, placed.o, placed.lse, cache.block_table,
            k_scale=cache.k_scale, v_scale=cache.v_scale,
        )  # fmt: skip
        self.read = _inputs(prepared)
        if cache.block_table is not None or cache.exact is not None:
            made = {"k_cache": cache.k, "v_cache": cache.v}
            self.read |= {name: (t, t.clone()) for name, t in made.items()}
        self._truth = truth

    def compare(self) -> dict[str, Comparison]:
        if self._truth is None:
            return {}
        found = self._truth.compare(self._tensors.o, self._tensors.lse)
        return dict(zip(("o", "lse"), found, strict=True))

    def plan(self) -> Plan:
        return self.kernel.plan(self._tensors, how=self._how, extras=self._extras)

    def call(self, workspace: torch.Tensor | None) -> None:
        self._counters = counters_for(self.plan(), self.device)
        self.kernel(
            self._tensors, self.case.scale, how=self._how, counters=self._counters,
            workspace=workspace, extras=self._extras,
        )  # fmt: skip

    def run(self, seed: int = 0) -> torch.Tensor | None:
        super().run(seed)
        return self._counters


class _Backward(SoakLaunch):
    kernel: BackwardKernel

    def __init__(self, instance: KernelId, prepared: PreparedGradients) -> None:
        placed = prepared.forward.placed
        device = placed.q.device
        super().__init__(find_backward(instance, target_of(device)), device)
        self.case, self.results = prepared.forward.case, prepared.results
        self.used = prepared.truth.used
        of_rows = {"o": placed.o, "lse": placed.lse, "do": prepared.do, "dlse": prepared.dlse}
        given = {name: (t, t.clone()) for name, t in of_rows.items() if t is not None}
        self.read = _inputs(prepared.forward) | given
        self._prepared = prepared

    def compare(self) -> dict[str, Comparison]:
        found = dict(self.results.tensors)
        bias = self._prepared.forward.semantics.bias
        if bias is not None:
            found["dbias"] = found["dbias"].sum_to_size(bias.shape).to(bias.dtype)
        return self._prepared.truth.compare(found)

    def plan(self) -> Plan:
        return self.kernel.plan(self._tensors, extras=self._extras)

    def call(self, workspace: torch.Tensor | None) -> None:
        scale = self.case.scale
        self.kernel(self._tensors, scale, workspace=workspace, extras=self._extras)

    @property
    def _extras(self) -> CallArgs:
        return self._prepared.forward.extras

    @property
    def _tensors(self) -> GradientTensors:
        placed, results = self._prepared.forward.placed, self.results.tensors
        return GradientTensors(
            placed.q, placed.k, placed.v, placed.o, placed.lse, self._prepared.do,
            results["dq"], results["dk"], results["dv"], self._prepared.dlse,
            results.get("dsinks"), results.get("dbias"),
        )  # fmt: skip


def _inputs(prepared: PreparedCase) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    placed = (prepared.placed.q, prepared.placed.k, prepared.placed.v)
    return dict(zip("qkv", zip(placed, prepared.inputs, strict=True), strict=True))
