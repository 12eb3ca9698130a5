"""The cold path of a call: one that ``launch_cache`` does not know.

The kernel is chosen for all calls with one key, found or built, launched and remembered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from flashsmith.configs import (
    AttentionKernelConfig,
    DecodeKernelConfig,
    ForwardKernelConfig,
    KernelId,
    Variant,
    Workload,
)
from flashsmith.configs.workload import check_row_sizes
from flashsmith.ops.checks import FP8, check_rank, check_scale, check_tensors
from flashsmith.ops.choices import Choices
from flashsmith.ops.few_queries import BoundFewQueries, FewQueries, few_queries_kernel_for
from flashsmith.ops.first_use import (
    check_before_building,
    check_extras_before_building,
    find_first,
    refuse_of_fp8,
)
from flashsmith.ops.layout import takes
from flashsmith.ops.no_keys import attend_no_keys
from flashsmith.ops.results import new_lse, new_o
from flashsmith.ops.spec import AttentionSpec, ResolvedSpec, resolve
from flashsmith.problem import size_class
from flashsmith.runtime import Kernel, find_kernel
from flashsmith.runtime.launch_cache import launch_cache
from flashsmith.runtime.plan import Plan
from flashsmith.runtime.workspace import (
    FRESH,
    current_stream,
    is_kept,
    kept_workspace,
    workspace_for,
)
from flashsmith.selection.select import dtype_of, select_for, select_fp8
from flashsmith.selection.standby import at_hand


class _Tensors(NamedTuple):
    """The tensors of a call's rows; o None: a new tensor."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor | None

    def batched(self, spec: ResolvedSpec) -> _Tensors:
        """Returns the tensors with four dimensions each: packed rows become one entry of a
        batch."""
        q, k, v, o = self
        if spec.extras.cu_seqlens_q is not None:
            q, o = q[None], None if o is None else o[None]
        if spec.extras.cu_seqlens_k is not None:
            k, v = k[None], v[None]
        return _Tensors(q, k, v, o)

    @property
    def named(self) -> dict[str, torch.Tensor]:
        return {name: t for name, t in zip("qkvo", self, strict=True) if t is not None}

    def check_types(self) -> None:
        """Raises TypeError unless each is a torch tensor; the library would accept any DLPack
        object."""
        q, k, v, o = self
        if not (
            isinstance(q, torch.Tensor)
            and isinstance(k, torch.Tensor)
            and isinstance(v, torch.Tensor)
            and (o is None or isinstance(o, torch.Tensor))
        ):
            self.check()

    def check(self) -> None:
        """Raises TypeError or ValueError unless each has four dimensions and is on a device with
        kernels."""
        check_tensors(**self.named)  # torch's error for a tensor without memory says less
        for name, t in self.named.items():
            check_rank(name, t, None)


@dataclass(slots=True, eq=False)
class _Choice:
    """The kernel of all calls with one key, and state that later calls reuse.

    config: The caller's configuration, kept alive because its id is in the key; else the selected
        one.
    call: The kernel's ``bind()``.
    scale: The default softmax scale.
    plan: The plan of a call that needs zeros; all calls of a kernel need the same number.
    zeros: The workspace that is kept, and its stream.
    lays_out: Whether some call had tensors with a layout that the kernel cannot read.
    """

    config: AttentionKernelConfig
    kernel: Kernel | FewQueries
    call: Callable[..., bool]
    scale: float
    o_dtype: torch.dtype
    plan: Plan | None = None
    zeros: tuple[torch.Tensor | None, int] = (None, 0)
    lays_out: bool = False


_choices: Choices[_Choice] = Choices()


def launch(
    config: AttentionKernelConfig | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None,
    given: AttentionSpec,
    with_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns o and lse of one call, whose flags and configuration were checked.

    A kernel is chosen once for all calls with one key, whatever their exact lengths; the library
    checks and plans each call, unless it looks like the last one. ``launch_cache`` remembers the
    call, and makes the next one of its kind.
    """
    spec = resolve(given, q, k)
    scale = None if given.softmax_scale is None else check_scale(given.softmax_scale)
    tensors = _Tensors(q, k, v, o)
    try:
        tensors.check_types()
        if v.shape[-3] == 0:
            dtype = _checked_config(config, tensors, spec).dtype
            return attend_no_keys(q, k, v, o, spec.extras, dtype.to_torch_dtype(), with_lse)
        choice = _choice_for(config, tensors, spec)
        scale = choice.scale if scale is None else scale
        if choice.lays_out:
            return _launch_laid_out(choice, tensors, spec, scale, with_lse)
        try:
            result = _launch(choice, q, k, v, o, spec, scale, with_lse)
        except ValueError:
            if config is not None or all(_are_read(choice, tensors, spec)):
                raise
            choice.lays_out = True
            return _launch_laid_out(choice, tensors, spec, scale, with_lse)
    except Exception:  # raises the same error as the first call of its kind
        _checked_config(config, tensors, spec)
        raise
    _remember(choice, config, q, k, v, result, o is None, given)
    return result


def measure(
    config: AttentionKernelConfig,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None,
    given: AttentionSpec,
    with_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, float]:
    """Makes the call as ``launch`` does, and also returns the milliseconds between two events
    around the launches."""
    o, lse = launch(config, q, k, v, o, given, with_lse)
    if v.shape[-3] == 0:
        return o, lse, 0.0
    spec, scale = resolve(given, q, k), given.softmax_scale
    choice = _choice_for(config, _Tensors(q, k, v, o), spec)
    plan = _plan(choice, _Tensors(q, k, v, o), spec)
    milliseconds = choice.kernel(
        q, k, v, o, choice.scale if scale is None else scale, True, lse=lse,
        workspace=workspace_for(plan, q.device), scales=spec.scales,
        block_table=spec.block_table, extras=spec.extras,
    )  # fmt: skip
    return o, lse, milliseconds


def _key(config: AttentionKernelConfig | None, tensors: _Tensors, spec: ResolvedSpec) -> Hashable:
    """Returns the key of a call's choice: the configuration (by its id), what is computed, dtype
    and device, sizes of heads and rows, and the size classes of batch and lengths."""
    q, _, v, o = tensors.batched(spec)
    heads, d_head = q.shape[-2:]
    heads_kv, d_v = v.shape[-2:]
    batch, n_q, n_k = spec.sizes(q, v)
    key = (
        id(config), spec.key, q.dtype, q.device, heads, heads_kv, d_head, d_v,
        size_class(batch), size_class(n_q), size_class(n_k),
    )  # fmt: skip
    if q.dtype == FP8:  # FP8 q does not determine the other dtypes
        return key, v.dtype, None if o is None else o.dtype
    return key


def _launch(
    choice: _Choice,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None,
    spec: ResolvedSpec,
    scale: float,
    with_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Launches a call whose tensors the kernel reads in place."""
    some_unused = spec.extras.seqused_q is not None  # unused rows of new tensors become 0 and -inf
    if o is None:
        o = new_o(q, v.shape[-1], choice.o_dtype)
        if some_unused:
            o.zero_()
    lse = new_lse(q) if with_lse else None
    if lse is not None and some_unused:
        lse.fill_(-math.inf)
    zeros, stream = choice.zeros
    own = *spec.scales, spec.block_table
    if not choice.call(stream, q, k, v, o, lse, *own, zeros, scale, *spec.extras):
        zeros = _zeros_for(choice, _Tensors(q, k, v, o), spec)
        choice.call(FRESH, q, k, v, o, lse, *own, zeros, scale, *spec.extras)
    return o, lse


def _remember(
    choice: _Choice,
    config: AttentionKernelConfig | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    result: tuple[torch.Tensor, torch.Tensor | None],
    makes_o: bool,
    spec: AttentionSpec,
) -> None:
    """Has ``launch_cache`` remember how this call was made."""
    o, lse = result
    function, by_split_kv = choice.call, isinstance(choice.call, BoundFewQueries)
    if isinstance(function, BoundFewQueries):
        memory, function = function.bound.kept(), function.bound.call
    else:
        memory = *_kept_for(choice, _Tensors(q, k, v, o), spec), None
    named = 0 if config is None else id(config)
    told = named, q, k, v, o, lse, makes_o, *spec
    launch_cache.remember_attend(function, config, by_split_kv, *memory, *told)


def _kept_for(
    choice: _Choice, tensors: _Tensors, given: AttentionSpec
) -> tuple[int, torch.Tensor | None]:
    """Returns a stream, and the workspace that is kept for this thread's next call on it, or
    None."""
    workspace, stream = choice.zeros
    q, k, *_ = tensors
    if workspace is not None or not q.is_cuda:
        return stream, workspace
    plan = _plan(choice, tensors, resolve(given, q, k))
    return current_stream(q.device), kept_workspace(plan, q.device)


def _zeros_for(choice: _Choice, tensors: _Tensors, spec: ResolvedSpec) -> torch.Tensor | None:
    """Returns a call's zeroed workspace on the current stream, which the call leaves zero; keeps it
    if the next call on that stream may use it too."""
    device, plan = tensors.q.device, choice.plan
    if plan is None:
        plan = choice.plan = _plan(choice, tensors, spec)
    zeros = workspace_for(plan, device)
    if is_kept(plan, device):
        choice.zeros = zeros, current_stream(device)
    return zeros


def _plan(choice: _Choice, tensors: _Tensors, spec: ResolvedSpec) -> Plan:
    return choice.kernel.plan(*tensors, block_table=spec.block_table, extras=spec.extras)


def _launch_laid_out(
    choice: _Choice, tensors: _Tensors, spec: ResolvedSpec, scale: float, with_lse: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Launches a call with copies of tensors whose layout the chosen kernel cannot read."""
    are_read = zip(_Tensors._fields, _are_read(choice, tensors, spec), strict=True)
    copied = {name: tensors.named[name].contiguous() for name, is_read in are_read if not is_read}
    o, lse = _launch(choice, *tensors._replace(**copied), spec, scale, with_lse)
    if tensors.o is not None and "o" in copied:
        o = tensors.o.copy_(o)
    return o, lse


def _are_read(choice: _Choice, tensors: _Tensors, spec: ResolvedSpec) -> list[bool]:
    """Returns for each tensor whether the kernel can read, or write, it in place.

    A paged cache is never copied; all kernels refuse an o whose elements share memory.
    """
    o = tensors.o
    if spec.block_table is not None:
        return [True] * len(tensors)
    varlen = spec.extras.is_varlen or choice.config.operation == "decode"
    are_read = [t is None or takes(choice.config, t, varlen) for t in tensors]
    if o is not None and 0 in o.stride():
        are_read[-1] = True
    return are_read


def _checked_config(
    config: AttentionKernelConfig | None, tensors: _Tensors, spec: ResolvedSpec
) -> AttentionKernelConfig:
    """Returns the caller's or the selected configuration; refuses an invalid call before a kernel
    is built for it."""
    tensors = tensors.batched(spec)
    tensors.check()
    q, k, v, o = tensors
    check_row_sizes(q.shape[-1], v.shape[-1])
    if q.dtype == FP8:
        refuse_of_fp8(spec.variant)
        config = config or select_fp8(q, v, o, spec.variant)
    chosen = config or select_for(_workload(q, k, v.shape[-1], spec), q.device, spec.is_cache)
    check_before_building(chosen, q, k, v, o=o)
    check_extras_before_building(spec.extras, q, k)
    return chosen


def _choice_for(
    config: AttentionKernelConfig | None, tensors: _Tensors, spec: ResolvedSpec
) -> _Choice:
    """Returns the kernel for all calls like this one; the first call finds or builds it."""
    key = _key(config, tensors, spec)
    if (choice := _choices.get(key)) is not None:
        return choice
    chosen = _checked_config(config, tensors, spec)
    q, d_v = tensors.q, tensors.v.shape[-1]
    variant = _variant(chosen, spec)
    if {q.shape[-1], d_v} != {chosen.d_head}:
        variant = replace(variant, padded=True)
    if config is None and variant.varlen == spec.variant.varlen:
        chosen = at_hand(chosen, variant, q.device)
    kernel: Kernel | FewQueries
    if isinstance(chosen, DecodeKernelConfig):
        kernel = few_queries_kernel_for(chosen, variant, q.device)
    else:
        kernel = kernel_for(chosen, variant, q.device)
    scale, o_dtype = q.shape[-1] ** -0.5, chosen.dtype.to_torch_dtype()
    choice = _Choice(config or chosen, kernel, kernel.bind(), scale, o_dtype)
    return _choices.keep(key, choice)


def _variant(chosen: AttentionKernelConfig, spec: ResolvedSpec) -> Variant:
    """Returns the variant of a call's kernel. Raises ValueError if decode's kernels cannot compute
    it."""
    variant = spec.variant
    if not isinstance(chosen, DecodeKernelConfig):
        return variant
    variant = replace(variant, varlen=False)  # lengths are arguments of every call
    if spec.is_cache and chosen.serves_variant(variant) and not chosen.fp8_cache:
        return variant
    raise ValueError(
        f"config is {chosen}; kernels of decode take 16-bit keys, seqused_k as lengths, and no "
        "top_left, bias or dropout: pass a configuration of forward, or None"
    )


def _workload(q: torch.Tensor, k: torch.Tensor, d_v: int, spec: ResolvedSpec) -> Workload:
    """Returns the workload for which a configuration is selected."""
    return Workload(spec.problem(dtype_of(q.dtype, q.device), q, k, d_v), spec.variant)


# A call costs microseconds; finding a kernel again would cost tens of them.
_kernels: dict[tuple[ForwardKernelConfig, Variant, torch.device], Kernel] = {}


def kernel_for(cfg: ForwardKernelConfig, variant: Variant, device: torch.device) -> Kernel:
    """Returns the kernel that ``forward`` launches; the first request finds or builds it. Raises
    ValueError if there is none for the variant."""
    kernel = _kernels.get((cfg, variant, device))
    if kernel is None:
        if not cfg.serves_variant(variant):
            raise ValueError(
                f"config is {cfg}, which has no kernels for {variant.name}; pass None, or another "
                "configuration"
            )
        kernel = find_first(find_kernel, KernelId(cfg, variant), device)
        kernel = _kernels.setdefault((cfg, variant, device), kernel)
    return kernel
