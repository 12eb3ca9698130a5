"""A forward kernel of the sm80 family: how it works (config), and that with what it computes."""

from __future__ import annotations

from dataclasses import dataclass, fields

from flashsmith.configs.dtype import DType
from flashsmith.configs.gpu import WARP_SIZE
from flashsmith.configs.legality import find_problems
from flashsmith.configs.variant import FULL, ForwardVariant

ELEMENT_BYTES = 2  # FP16 and BF16


@dataclass(frozen=True, order=True)
class FlashForwardKernelConfig:
    """How a kernel works: one point of the configuration space, the C++ struct of the same name.

    Same fields in the same order as the C++ struct, and the same order between configurations.

    dtype: element type of Q, K, V and O; sums and statistics are FP32.
    d_head: head dimension, 64 or 128.
    B_r: rows of Q that a thread block works on.
    B_c: rows of K and V that are in shared memory at a time.
    n_warps: warps of a thread block, which share the rows of Q.
    async_copy: global to shared memory with cp.async, else through registers.
    eager_load_blocks: load the next K and V block as early as their buffer is free.
    swizzled: permute the 16-byte chunks of a shared-memory row against bank conflicts.
    Q_mma_load_K_tiles, K_mma_load_K_tiles, V_mma_load_K_tiles: fragments along the mma's K
        dimension that are loaded from shared memory at a time; 0: the operand's whole block is
        held in registers.
    mma_double_buffer_loads: load the next fragments before the current mma.
    optimized_softmax: the softmax scale is folded into the exponential, row sums are reduced once
        at the end.

    Raises:
        TypeError: a field has the wrong type; names the field.
        ValueError: a field is negative, or zero where that means nothing. What is well formed may
            still be a point that no kernel supports: `problems()` says so.
    """

    dtype: DType
    d_head: int
    B_r: int
    B_c: int
    n_warps: int
    async_copy: bool
    eager_load_blocks: bool
    swizzled: bool
    Q_mma_load_K_tiles: int
    K_mma_load_K_tiles: int
    V_mma_load_K_tiles: int
    mma_double_buffer_loads: bool
    optimized_softmax: bool

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kind = type(value).__name__
            # Not isinstance, to which a bool is an int: True is no tile size.
            if kind != field.type:
                raise TypeError(
                    f"{field.name}: expected {field.type}, got {value!r} of type {kind}"
                )
            minimum = 0 if field.name.endswith("_tiles") else 1
            if field.type == "int" and value < minimum:
                raise ValueError(f"{field.name}: expected at least {minimum}, got {value}")

    def __str__(self) -> str:
        return self.short_form()

    def short_form(self, include_d_head: bool = True, include_tup: bool = True) -> str:
        """`(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax`.

        The tuple is (dtype, d_head, B_r, B_c, n_warps). Only the whole form says everything: the
        parser wants the d_head beside a form without it, and reads none without the tuple.
        """
        features = [
            "async" if self.async_copy else "",
            "eager" if self.eager_load_blocks else "",
            "swizzled" if self.swizzled else "",
            f"load_{'_'.join(str(n) for n in self._load_tiles)}_tiles",
            "buffer" if self.mma_double_buffer_loads else "",
            "opt_softmax" if self.optimized_softmax else "",
        ]
        text = "+".join(feature for feature in features if feature)
        if not include_tup:
            return text
        d_head = (self.d_head,) if include_d_head else ()
        tup = (self.dtype, *d_head, self.B_r, self.B_c, self.n_warps)
        return f"({', '.join(str(value) for value in tup)}): {text}"

    def to_cpp_struct(self) -> str:
        """The C++ literal, `FlashForwardKernelConfig{ScalarType::Half, 128, 64, ...}`."""
        values = ", ".join(self._cpp_values(self.dtype.to_cpp_str(), with_types=False))
        return f"FlashForwardKernelConfig{{{values}}}"

    def kernel_name(self, with_types: bool = False) -> str:
        """ForwardKernelInstance.kernel_name of the kernel for full attention."""
        return ForwardKernelInstance(self).kernel_name(with_types)

    def problems(self, gpu: str = "sm_80") -> list[str]:
        """The reasons, one sentence each, why this cannot be built or run on `gpu`; none if it can.

        Raises:
            ValueError: `gpu` is not a known architecture.
        """
        return find_problems(self, gpu)

    @property
    def threads_per_block(self) -> int:
        return self.n_warps * WARP_SIZE

    @property
    def shared_memory_bytes(self) -> int:
        """One tile each of Q, K and V; O leaves through Q's."""
        return (self.B_r + 2 * self.B_c) * self.d_head * ELEMENT_BYTES

    def attn_flop(self, n_samples: int, n_heads: int, seq_len: int) -> int:
        """Operations of the two matrix products of full attention, 4 * b * h * s^2 * d.

        What published TFLOP/s of attention are based on.
        """
        for name, value in {"n_samples": n_samples, "n_heads": n_heads, "seq_len": seq_len}.items():
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        return 4 * n_samples * n_heads * seq_len**2 * self.d_head

    def total_flop(self, n_samples: int, n_heads: int, seq_len: int) -> int:
        """`attn_flop` plus what the online softmax takes, an exponential counted as one operation.

        Each score: scale, maximum, subtraction, exponential, sum (5). Each row at each K/V block:
        difference of maxima, exponential, rescaling of l and of O's row (3 + d). Each row at the
        end: division of O's row (d).
        """
        matmuls = self.attn_flop(n_samples, n_heads, seq_len)
        n_KV_blocks = -(-seq_len // self.B_c)
        row = 5 * seq_len + (3 + self.d_head) * n_KV_blocks + self.d_head
        return matmuls + n_samples * n_heads * seq_len * row

    @property
    def _load_tiles(self) -> tuple[int, int, int]:
        return self.Q_mma_load_K_tiles, self.K_mma_load_K_tiles, self.V_mma_load_K_tiles

    def _cpp_values(self, dtype: str, with_types: bool) -> list[str]:
        values = [dtype]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if with_types:
                values.append(f"({field.type}){int(value)}")
            else:
                values.append(str(value).lower())
        return values


@dataclass(frozen=True, order=True)
class ForwardKernelInstance:
    """One kernel: how it works (config) and what it computes (variant)."""

    config: FlashForwardKernelConfig
    variant: ForwardVariant = FULL

    def __post_init__(self) -> None:
        for name, kind in (("config", FlashForwardKernelConfig), ("variant", ForwardVariant)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name}: expected {kind.__name__}, got {getattr(self, name)!r}")

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """The short form, then the variant's name unless that is plain full attention."""
        return self.config.short_form() + self._variant_suffix(" ")

    @property
    def slug(self) -> str:
        """A unique name for files and C++ identifiers, `fp16_d128_r64_c64_w4_async_..._causal`."""
        cfg = self.config
        tup = f"{cfg.dtype}_d{cfg.d_head}_r{cfg.B_r}_c{cfg.B_c}_w{cfg.n_warps}".lower()
        features = cfg.short_form(include_tup=False).replace("_tiles", "").replace("+", "_")
        return f"{tup}_{features}" + self._variant_suffix("_")

    def kernel_name(self, with_types: bool = False) -> str:
        """The kernel's name as c++filt demangles it.

        With types: as profilers print it, `(int)128, (bool)1`.
        """
        cfg = ", ".join(
            self.config._cpp_values(
                f"(flashsmith::ScalarType){self.config.dtype.value}", with_types
            )
        )
        causal = (
            f"(bool){int(self.variant.causal)}" if with_types else str(self.variant.causal).lower()
        )
        return (
            "void flashsmith::flash_forward_kernel<flashsmith::StaticForwardKernelConfig<"
            f"flashsmith::FlashForwardKernelConfig{{{cfg}}}, "
            f"flashsmith::ForwardVariant{{{causal}}}> >(flashsmith::ForwardKernelArgs)"
        )

    def _variant_suffix(self, separator: str) -> str:
        return "" if self.variant == FULL else separator + self.variant.name
