"""The kernels of a loaded library, as what calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from flashsmith.configs import KernelId
from flashsmith.runtime.call_args import CAUSAL_EXTRAS, FULL_EXTRAS, NO_SCALES, CallArgs, Scales
from flashsmith.runtime.plan import Plan


class GradientTensors(NamedTuple):
    """What a backward reads and writes.

    q: (batch, seq_len_q, n_heads, d_head).
    k: (batch, seq_len_k, n_heads_kv, d_head).
    v: (batch, seq_len_k, n_heads_kv, d_v).
    o: (batch, seq_len_q, n_heads, d_v), of the forward.
    lse: (batch, n_heads, seq_len_q), float32, contiguous: of the forward.
    do: (batch, seq_len_q, n_heads, d_v), the gradient by o.
    dq: (batch, seq_len_q, n_heads, d_head): overwritten.
    dk: (batch, seq_len_k, n_heads_kv, d_head): overwritten.
    dv: (batch, seq_len_k, n_heads_kv, d_v): overwritten.
    dlse: (batch, n_heads, seq_len_q), float32, the gradient by lse; None: 0.
    dsinks: (n_heads,), float32: overwritten; None: not wanted.
    dbias: (batch, n_heads, seq_len_q, seq_len_k), float32, zeros: what is not zero is written;
        None: not wanted.
    """

    q: Any
    k: Any
    v: Any
    o: Any
    lse: Any
    do: Any
    dq: Any = None
    dk: Any = None
    dv: Any = None
    dlse: Any = None
    dsinks: Any = None
    dbias: Any = None

    @property
    def given(self) -> dict[str, Any]:
        """Those that are not None, by name."""
        return {name: t for name, t in zip(self._fields, self, strict=True) if t is not None}


@dataclass(frozen=True, eq=False)
class LoadedKernel:
    """One kernel of a loaded library, or the set of those that make one backward."""

    instance: KernelId
    module: Any  # the library's tvm_ffi module
    operations: Mapping[str, Callable[..., Any]]  # functions of its library

    def extras_or(self, extras: CallArgs | None) -> CallArgs:
        """Returns none: no more than a causal mask, if the variant has one."""
        if extras is not None:
            return extras
        return CAUSAL_EXTRAS if self.instance.variant.causal else FULL_EXTRAS


@dataclass(frozen=True, eq=False)
class Kernel(LoadedKernel):
    """A forward kernel."""

    def plan(
        self,
        q: Any,
        k: Any,
        v: Any,
        o: Any,
        *,
        lse: Any = None,
        block_table: Any = None,
        extras: CallArgs = FULL_EXTRAS,
    ) -> Plan:
        """Returns what a call on such tensors does; their memory is not looked at.

        Raises:
            ValueError, TypeError: Shapes, dtypes or devices that this kernel does not take.
            DeviceError: The GPU could not be asked.
        """
        tensors = q, k, v, o, lse, *NO_SCALES, block_table
        return Plan.of(self.operations["plan"](*tensors, None, 1.0, *extras))

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        o: Any,
        softmax_scale: float,
        timed: bool = False,
        *,
        lse: Any = None,
        workspace: Any = None,
        scales: Scales = NO_SCALES,
        block_table: Any = None,
        extras: CallArgs | None = None,
    ) -> float:
        """o = softmax(q k^T * softmax_scale) v, on the current stream of the tensors' device.

        Args:
            q: (batch, seq_len_q, n_heads, d_head), a tensor that speaks DLPack, of the dtype that
                the configuration says and on the device of all others. With cu_seqlens_q it, o and
                lse have no batch, with cu_seqlens_k neither have k and v.
            k: (batch, seq_len_k, n_heads_kv, d_head); with block_table the first two are n_pages
                and page_size.
            v: (batch, seq_len_k, n_heads_kv, d_v); likewise.
            o: (batch, seq_len_q, n_heads, d_v): overwritten.
            softmax_scale: Factor on q k^T.
            timed: Wait for the result and measure.
            lse: (batch, n_heads, seq_len_q), float32, contiguous: overwritten with the natural
                logarithm of the sum of the exponentials.
            workspace: What ``workspace_for`` gives for the call's plan; no launch that may run at
                the same time may have the same.
            scales: Of q, k and v that have 8 bits.
            block_table: (sequences, pages), int32: the pages of each, of which seqused_k says how
                many rows it has; for a paged variant.
            extras: What the kernel's variant takes besides; None: nothing, or a causal mask.

        Returns:
            Milliseconds between two events around the launch if ``timed``, else 0.

        Raises:
            ValueError, TypeError: The tensors are none that this kernel takes; names the tensor.
            DeviceError: The GPU is too old, or refused the launch.
            EmulatorFault: The kernel broke a rule on the emulator.
        """
        tensors = q, k, v, o, lse, *scales, block_table, workspace
        told = self.extras_or(extras)
        return float(self.operations["forward"](timed, *tensors, softmax_scale, *told))

    def bind(self) -> Callable[..., bool]:
        """A function that makes calls of this kernel, with as little as that can take.

        It takes the stream that the workspace is kept for, by its number, or ``FRESH`` for one that
        no other call has; q, k, v, o, lse, the scales one by one, block_table, the workspace, the
        softmax's scale, and a call's extras one by one. A workspace that need not be zero may be
        None: the call allocates it.

        It returns whether it made the call. It does not where the kernel wants zeros, and other
        work may have those that are kept: on another stream, or in a CUDA graph. What it raises is
        what ``__call__`` does.
        """
        return self.operations["bind"]()  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class BackwardKernel(LoadedKernel):
    """All kernels of a backward."""

    def plan(self, tensors: GradientTensors, *, extras: CallArgs = FULL_EXTRAS) -> Plan:
        """Returns what a call on such tensors does; their memory is not looked at. Raises as
        ``Kernel.plan``."""
        return Plan.of(self.operations["plan"](*tensors, None, 1.0, *extras))

    def bind(self) -> Callable[..., None]:
        """A function that makes calls of these kernels, with as little as that can take.

        It takes whether dq, dk and dv are new, the tensors one by one, the workspace, which it
        allocates for None, the scale, and a call's extras one by one. What it raises is what
        ``__call__`` does.
        """
        return self.operations["bind"]()  # type: ignore[no-any-return]

    def __call__(
        self,
        tensors: GradientTensors,
        softmax_scale: float,
        timed: bool = False,
        *,
        are_new: bool = False,
        workspace: Any = None,
        extras: CallArgs | None = None,
    ) -> float:
        """Returns the gradients of ``Kernel.__call__``, on the current stream of the tensors'
        device.

        Args:
            tensors: Speak DLPack; on one device.
            softmax_scale, timed, extras: As there.
            are_new: Whether dq, dk and dv hold nothing yet: rows of no sequence become 0.
            workspace: What ``workspace_for`` gives for the call's plan.

        Returns, raises: As there.
        """
        told = self.extras_or(extras)
        operation = self.operations["backward"]
        return float(operation(timed, are_new, *tensors, workspace, softmax_scale, *told))
