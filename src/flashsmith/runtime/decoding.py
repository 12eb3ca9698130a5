"""The decode kernels of a loaded library, as what calls them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from flashsmith.runtime.call_args import FULL_EXTRAS, CallArgs
from flashsmith.runtime.loaded import LoadedKernel
from flashsmith.runtime.plan import Plan


class DecodeTensors(NamedTuple):
    """What decode reads and writes; how many rows a request has is among the extras.

    q: (batch, seq_len_q, n_heads, d_head).
    k_cache: (entries, rows, n_heads_kv, d_head), of q's dtype or float8_e4m3fn, as the kernel is.
    v_cache: (entries, rows, n_heads_kv, d_v).
    o: (batch, seq_len_q, n_heads, d_v): overwritten.
    lse: (batch, n_heads, seq_len_q), float32, contiguous: overwritten; None: not wanted.
    block_table: (batch, pages), int32: the entries that are a request's pages; None: it has one.
    cache_batch_idx: (batch,), int32: which that is; None: that of its own number.
    cache_leftpad: (batch,), int32: rows before its first key; None: none.
    k_scale, v_scale: (1,), (n_heads_kv,), (batch, n_heads_kv) or, for a kernel with
        per_token_scale, (entries, rows, n_heads_kv), float32: what a cache of float8_e4m3fn is
        multiplied with; None: 1.
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
    """What an append reads and writes.

    interleaved: Elements 2 i and 2 i + 1 of a row are turned together; else i and
        i + rotary_dim / 2.
    queries_in_a_row: Query i is turned as new key i; else all as the first.
    k, v: (batch, n_new, n_heads_kv, d_head) and (..., d_v).
    k_cache, v_cache: As of ``DecodeTensors``: written.
    q, q_turned: (batch, seq_len_q, n_heads, d_head): read, and overwritten; None where there is no
        rotary_cos.
    rotary_cos, rotary_sin: (rows, rotary_dim / 2), contiguous; None: nothing is turned.
    cache_seqlens: (batch,), int32: how many rows are in use.
    block_table, cache_batch_idx, k_scale, v_scale: As of ``DecodeTensors``. What goes into a cache
        of float8_e4m3fn is divided by its scale, rounded to nearest even, and cut to 448.
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
    """What a plan and its errors go by beside shapes.

    splits: In how many parts the keys of each request are visited, whatever the others are; 0: all
        thread blocks have as much to do.
    n_new: Keys of each request behind those that lengths tell of.
    of_attention: Errors name arguments as ``attention`` does: k, v and seqused_k.
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
        """Returns what a call on such tensors does; their memory is not looked at. Raises as
        ``Kernel.plan``."""
        return Plan.of(self.operations["plan"](*how, *tensors, None, None, 1.0, *extras))

    def bind(self, how: Splitting, *, appends: bool) -> Callable[..., bool]:
        """A function that makes calls of this kernel, with as little as that can take.

        It takes the stream that counters and workspace are kept for, by its number, or ``FRESH``
        for what no other call has; the tensors one by one, counters, workspace, the softmax's
        scale, and a call's extras one by one. With ``appends`` it takes ``AppendArguments`` and
        ``NO_SOFTMAX`` behind the stream, one by one, and appends first; the cache stays as it was
        where the call is refused.

        It returns whether it made the call: it does nothing where counters or workspace are too
        small, or other work may have them: on another stream, or in a CUDA graph. What it raises
        is what ``__call__`` and ``append`` do.
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
        """o = softmax(q k^T * softmax_scale) v over the keys of a cache, on the current stream of
        the tensors' device.

        Args:
            tensors: Speak DLPack; on one device.
            softmax_scale, timed, extras: As of ``Kernel.__call__``; seqused_k says how many rows of
                the cache each request has, None: all.
            how: What the plan was made for.
            counters: Zeros, as many bytes as the call's plan says.
            workspace: What ``workspace_for`` gives for the call's plan.

        Returns, raises: As there.
        """
        told = self.extras_or(extras)
        operation = self.operations["decode"]
        return float(operation(timed, *how, *tensors, counters, workspace, softmax_scale, *told))

    def append(self, arguments: AppendArguments) -> None:
        """Writes new keys and values into a cache, behind the rows in use of each request; those
        for which there is no room are left out.

        Raises:
            ValueError, TypeError, DeviceError, EmulatorFault: As ``Kernel.__call__``.
        """
        self.operations["append"](*arguments, *NO_SOFTMAX)
