"""Loaded decode kernels, as Python objects that can be called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from flashsmith.runtime.call_args import FULL_EXTRAS, CallArgs
from flashsmith.runtime.loaded import LoadedKernel
from flashsmith.runtime.plan import Plan


class DecodeTensors(NamedTuple):
    """The tensors that decode reads and writes; the extras say how many rows each request has.

    q: (batch, seq_len_q, n_heads, d_head).
    k_cache: (slots, rows, n_heads_kv, d_head), of q's dtype or float8_e4m3fn, as the kernel
        expects.
    v_cache: (slots, rows, n_heads_kv, d_v).
    o: (batch, seq_len_q, n_heads, d_v): overwritten.
    lse: (batch, n_heads, seq_len_q), float32, contiguous: overwritten; None: it is not computed.
    block_table: (batch, pages), int32: each request's pages; None: each request has one slot.
    cache_batch_idx: (batch,), int32: each request's slot; None: request i has slot i.
    cache_leftpad: (batch,), int32: rows before its first key; None: none.
    k_scale, v_scale: (1,), (n_heads_kv,), (batch, n_heads_kv) or, for a kernel with
        per_token_scale, (slots, rows, n_heads_kv), float32: the factors of a float8_e4m3fn cache;
        None: 1.
    """

    q: Any
    k_cache: Any
    v_cache: Any
    o: Any
    lse: Any = None
    block_table: Any = None
    cache_batch_idx: Any = None
    cache_leftpad: Any = None
    k_scale: Any = None
    v_scale: Any = None


class AppendArguments(NamedTuple):
    """The tensors and flags of an append.

    interleaved: Whether elements 2 i and 2 i + 1 of a row form a rotary pair; else i and i +
        rotary_dim / 2 do.
    queries_in_a_row: Whether query i has the rotary angle of new key i; else all queries have that
        of the first.
    k, v: (batch, n_new, n_heads_kv, d_head) and (..., d_v).
    k_cache, v_cache: See ``DecodeTensors``; written.
    q, q_turned: (batch, seq_len_q, n_heads, d_head): read, and overwritten; None without
        rotary_cos.
    rotary_cos, rotary_sin: (rows, rotary_dim / 2), contiguous; None: no rotation.
    cache_seqlens: (batch,), int32: how many rows are in use.
    block_table, cache_batch_idx, k_scale, v_scale: See ``DecodeTensors``. A number for a
        float8_e4m3fn cache is divided by its scale, rounded to nearest even, and clamped to +-448.
    """

    interleaved: bool
    queries_in_a_row: bool
    k: Any
    v: Any
    k_cache: Any
    v_cache: Any
    q: Any
    q_turned: Any
    rotary_cos: Any
    rotary_sin: Any
    cache_seqlens: Any
    block_table: Any = None
    cache_batch_idx: Any = None
    k_scale: Any = None
    v_scale: Any = None


class Splitting(NamedTuple):
    """The options, beside shapes, on which a plan and its error messages depend.

    splits: The number of splits of each request's keys, whatever the other requests are; 0: a
        stream-K schedule gives all thread blocks equal work.
    n_new: New keys of each request, which follow the keys that the lengths count.
    of_attention: Whether errors use the argument names of ``attention``: k, v and seqused_k.
    """

    splits: int = 0
    n_new: int = 0
    of_attention: bool = False


AS_EVEN_AS_CAN_BE = Splitting()
NO_SOFTMAX = (None, 1.0)  # workspace and scale, which an append takes as every operation does


@dataclass(frozen=True, eq=False)
class DecodeKernel(LoadedKernel):
    """A decode kernel."""

    def plan(
        self,
        tensors: DecodeTensors,
        *,
        how: Splitting = AS_EVEN_AS_CAN_BE,
        extras: CallArgs = FULL_EXTRAS,
    ) -> Plan:
        """Returns the launches and memory of a call on such tensors without reading their data.
        Raises as ``Kernel.plan`` does."""
        return Plan.of(self.operations["plan"](*how, *tensors, None, None, 1.0, *extras))

    def bind(self, how: Splitting, *, appends: bool) -> Callable[..., bool]:
        """Returns a function that calls this kernel with minimal host overhead.

        The function takes the number of the stream that counters and workspace are kept for, or
        ``FRESH`` if no other call shares them; then, one by one, the tensors, counters, workspace,
        softmax scale and extras. With ``appends`` it takes ``AppendArguments`` and ``NO_SOFTMAX``
        behind the stream, one by one, and appends first; a refused call leaves the cache unchanged.

        It returns whether it made the call: it does nothing if counters or workspace are too small,
        or if other work may use them (on another stream, or in a CUDA graph). It raises what
        ``__call__`` and ``append`` raise.
        """
        return self.operations["bind"](appends, *how)  # type: ignore[no-any-return]

    def __call__(
        self,
        tensors: DecodeTensors,
        softmax_scale: float,
        timed: bool = False,
        *,
        how: Splitting = AS_EVEN_AS_CAN_BE,
        counters: Any = None,
        workspace: Any = None,
        extras: CallArgs | None = None,
    ) -> float:
        """Computes o = softmax(q k^T * softmax_scale) v over the keys of a cache, on the current
        stream of the tensors' device.

        Args:
            tensors: Tensors that support DLPack, all on one device.
            softmax_scale, timed, extras: See ``Kernel.__call__``; seqused_k says how many rows of
                the cache each request has, None: all.
            how: The ``Splitting`` that the plan was made for.
            counters: Zeros, as many bytes as the call's plan says.
            workspace: The memory that ``workspace_for`` returns for the call's plan.

        Returns, raises: See ``Kernel.__call__``.
        """
        told = self.extras_or(extras)
        operation = self.operations["decode"]
        return float(operation(timed, *how, *tensors, counters, workspace, softmax_scale, *told))

    def append(self, arguments: AppendArguments) -> None:
        """Writes new keys and values into a cache, behind the rows in use of each request; keys for
        which a slot has no room are dropped.

        Raises:
            ValueError, TypeError, DeviceError, EmulatorFault: See ``Kernel.__call__``.
        """
        self.operations["append"](*arguments, *NO_SOFTMAX)
