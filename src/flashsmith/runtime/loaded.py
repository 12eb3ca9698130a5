"""Loaded kernels, as Python objects that can be called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from flashsmith.configs import KernelId
from flashsmith.runtime.call_args import CAUSAL_EXTRAS, FULL_EXTRAS, NO_SCALES, CallArgs, Scales
from flashsmith.runtime.plan import Plan


class GradientTensors(NamedTuple):
    """The tensors that a backward reads and writes.

    q: (batch, seq_len_q, n_heads, d_head).
    k: (batch, seq_len_k, n_heads_kv, d_head).
    v: (batch, seq_len_k, n_heads_kv, d_v).
    o: (batch, seq_len_q, n_heads, d_v), the forward's output.
    lse: (batch, n_heads, seq_len_q), float32, contiguous: the forward's log-sum-exp.
    do: (batch, seq_len_q, n_heads, d_v), the gradient of the loss by o.
    dq: (batch, seq_len_q, n_heads, d_head): overwritten.
    dk: (batch, seq_len_k, n_heads_kv, d_head): overwritten.
    dv: (batch, seq_len_k, n_heads_kv, d_v): overwritten.
    dlse: (batch, n_heads, seq_len_q), float32, the gradient of the loss by lse; None: 0.
    dsinks: (n_heads,), float32: overwritten; None: not computed.
    dbias: (batch, n_heads, seq_len_q, seq_len_k), float32, zeros: non-zero gradients are written;
        None: not computed.
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
        """The tensors that are not None, by name."""
        return {name: t for name, t in zip(self._fields, self, strict=True) if t is not None}


@dataclass(frozen=True, eq=False)
class LoadedKernel:
    """One loaded kernel, or all kernels of one backward."""

    instance: KernelId
    module: Any  # the host library's tvm_ffi module
    operations: Mapping[str, Callable[..., Any]]  # functions of the host library

    def extras_or(self, extras: CallArgs | None) -> CallArgs:
        """Returns ``extras``; for None the default of the variant: at most a causal mask."""
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
        """Returns the launches and memory of a call on such tensors, without reading their data.

        Raises:
            ValueError, TypeError: The kernel does not support these shapes, dtypes or devices.
            DeviceError: The GPU's properties cannot be read.
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
        """Computes o = softmax(q k^T * softmax_scale) v on the current stream of the tensors'
        device.

        Args:
            q: (batch, seq_len_q, n_heads, d_head), a tensor that supports DLPack, of the
                configuration's dtype and on the device of all others. With cu_seqlens_q, q, o and
                lse have no batch dimension; with cu_seqlens_k, k and v have none.
            k: (batch, seq_len_k, n_heads_kv, d_head); with block_table the first two are n_pages
                and page_size.
            v: (batch, seq_len_k, n_heads_kv, d_v); with block_table as k.
            o: (batch, seq_len_q, n_heads, d_v): overwritten.
            softmax_scale: The factor of q k^T.
            timed: Whether to wait for the result and measure the time.
            lse: (batch, n_heads, seq_len_q), float32, contiguous: overwritten with the natural
                logarithm of the sum of the exponentials.
            workspace: The memory that ``workspace_for`` returns for the call's plan; launches that
                may run at the same time must not share it.
            scales: The scales of FP8 q, k and v.
            block_table: (sequences, pages), int32: the pages of each sequence, whose length
                seqused_k says; for a paged variant.
            extras: The further arguments of the variant; None: none, or a causal mask.

        Returns:
            Milliseconds between two events around the launch if ``timed``, else 0.

        Raises:
            ValueError, TypeError: The kernel does not support the tensors; the message names one.
            DeviceError: The GPU is too old, or refused the launch.
            EmulatorFault: The kernel broke a rule on the emulator.
        """
        tensors = q, k, v, o, lse, *scales, block_table, workspace
        told = self.extras_or(extras)
        return float(self.operations["forward"](timed, *tensors, softmax_scale, *told))

    def bind(self) -> Callable[..., bool]:
        """Returns a function that calls this kernel with minimal host overhead.

        The function takes the number of the stream that the workspace is kept for, or ``FRESH`` if
        no other call shares it; then, one by one, q, k, v, o, lse, the scales, block_table, the
        workspace, the softmax scale and the extras. A workspace that need not be zero may be None:
        the call allocates it.

        It returns whether it made the call. It does nothing if the kernel needs zeros that other
        work may use: on another stream, or in a CUDA graph. It raises what ``__call__`` raises.
        """
        return self.operations["bind"]()  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class BackwardKernel(LoadedKernel):
    """All kernels of a backward."""

    def plan(self, tensors: GradientTensors, *, extras: CallArgs = FULL_EXTRAS) -> Plan:
        """Returns the launches and memory of a call on such tensors without reading their data.
        Raises as ``Kernel.plan`` does."""
        return Plan.of(self.operations["plan"](*tensors, None, 1.0, *extras))

    def bind(self) -> Callable[..., None]:
        """Returns a function that calls these kernels with minimal host overhead.

        The function takes whether dq, dk and dv are new, the tensors one by one, the workspace
        (None: it allocates one), the softmax scale, and the extras one by one. It raises what
        ``__call__`` raises.
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
        """Computes the gradients of ``Kernel.__call__`` on the current stream of the tensors'
        device.

        Args:
            tensors: Tensors that support DLPack, all on one device.
            softmax_scale, timed, extras: See ``Kernel.__call__``.
            are_new: Whether dq, dk and dv are uninitialised: rows outside all sequences are set to
                0.
            workspace: The memory that ``workspace_for`` returns for the call's plan.

        Returns, raises: See ``Kernel.__call__``.
        """
        told = self.extras_or(extras)
        operation = self.operations["backward"]
        return float(operation(timed, are_new, *tensors, workspace, softmax_scale, *told))
