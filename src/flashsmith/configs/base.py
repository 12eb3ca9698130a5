"""What the configuration classes of all operations and families share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import Field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from flashsmith.configs.features import Feature, write_features
from flashsmith.configs.variant import FULL, Variant
from flashsmith.configs.workload import (
    AnyWorkload,
    BackwardWorkload,
    DecodeWorkload,
    Workload,
    padded_d_head,
)
from flashsmith.dtype import DType
from flashsmith.gpus import WARP_SIZE, WARPGROUP_SIZE, get_gpu_architecture
from flashsmith.problem import Problem

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on


Capability = tuple[int, int]  # a GPU's compute capability

# The configuration class of every operation and family, from the plainest: each joins when it is
# defined, and flashsmith.configs.registry defines them in its order.
CONFIG_CLASSES: list[type[KernelConfig]] = []


class KernelConfig(ABC):
    """How a kernel works: one point of a family's configuration space.

    A family's class is a frozen, ordered dataclass with the same fields in the same order as the
    C++ struct of its name. The class variables say how the family is called elsewhere.
    """

    def __init_subclass__(cls) -> None:
        if "family" in cls.__dict__:
            CONFIG_CLASSES.append(cls)

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    operation: ClassVar[str]  # "forward", "backward" or "decode"
    family: ClassVar[str]  # "sm80": its name, and that of the folder and namespace of its kernels
    scheme: ClassVar[str] = ""  # where the family does the operation in another way, too: "split"
    minimum_gpu: ClassVar[str]  # the plainest architecture that some of it run on
    exact_arch: ClassVar[bool]  # whether that is the only one
    # Whether rows are read through tensor maps. These know no expanded dimensions, and of sequences
    # with lengths of their own only entries that lie a whole number of rows apart.
    reads_by_maps: ClassVar[bool] = False
    needs_slopes: ClassVar[bool] = False  # whether kernels need derivatives of score functions
    # C++ templates and types. Of a set of kernels: the function that has the pointers, and the
    # struct of them.
    is_set_of_kernels: ClassVar[bool] = False
    kernel_function: ClassVar[str]
    static_configuration: ClassVar[str]
    kernel_arguments: ClassVar[str]
    kernel_header: ClassVar[str]  # that has them, and the C++ struct of the configuration
    kernel_pointer: ClassVar[str]  # C++ type
    markers: ClassVar[frozenset[str]]  # features that together only its short forms have
    tuple_fields: ClassVar[tuple[str, ...]]  # of the short form
    feature_table: ClassVar[tuple[Feature, ...]]
    may_be_zero: ClassVar[frozenset[str]]  # fields for which 0 means something

    dtype: DType
    d_head: int
    B_r: int
    B_c: int

    @abstractmethod
    def problems(self, gpu: str) -> list[str]:
        """The reasons, one sentence each, why this cannot be built or run on `gpu`; none if it can.

        Raises:
            ValueError: `gpu` is not a known architecture.
        """

    @classmethod
    def kernels_name(cls) -> str:
        """Returns what its kernels are called beside the family: their operation, after a
        scheme's name."""
        return f"{cls.scheme}_{cls.operation}".lstrip("_")

    @classmethod
    def qualified_family(cls) -> str:
        """Returns what tells its kernels from all others: `sm90_backward`."""
        return f"{cls.family}_{cls.kernels_name()}"

    @classmethod
    def runs_on(cls, capability: Capability) -> bool:
        """Returns whether GPUs of this compute capability have the instructions of its kernels."""
        own = get_gpu_architecture(cls.minimum_gpu).compute_capability
        return capability == own if cls.exact_arch else capability >= own

    def is_buildable(self, gpu: str | None = None) -> bool:
        """Returns whether it can be built for `gpu`; None: for the plainest that it runs on."""
        return not self.problems(gpu or self.plainest_gpu)

    @property
    def newer_gpus(self) -> tuple[str, ...]:
        """From which architectures on its kernels have instructions of those, oldest first."""
        return ()

    @property
    def plainest_gpu(self) -> str:
        """The plainest architecture that this configuration runs on."""
        return self.minimum_gpu

    @property
    @abstractmethod
    def threads_per_block(self) -> int:
        """Threads of a block, those that only load included."""

    @property
    def loading_warps(self) -> int:
        """Warps of a block that load for the others: a warpgroup, where tensor maps say what."""
        return WARPGROUP_SIZE // WARP_SIZE if self.reads_by_maps else 0

    @property
    def compute_warps(self) -> int:
        """The others of a block."""
        return self.threads_per_block // WARP_SIZE - self.loading_warps

    @property
    @abstractmethod
    def shared_memory_parts(self) -> dict[str, int]:
        """The bytes of a block's dynamic shared memory, by what is there, in their order."""

    @property
    def shared_memory_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return sum(self.shared_memory_parts.values())

    @property
    @abstractmethod
    def held_registers(self) -> dict[str, int]:
        """Registers of a thread that computes, by what the fullest kernel holds in them."""

    @property
    def moved_registers(self) -> tuple[int, int] | None:
        """Of a thread that loads, and of one that computes, once the launch's were moved from one
        to the other; None: they stay as they are."""
        return None

    @property
    def row_multiple(self) -> int:
        """Of what d_head and d_v of a call are multiples: the elements of 16 bytes."""
        return 8

    @property
    def fp8_tensors(self) -> frozenset[str]:
        """Which of q, k and v have 8 bits, e4m3."""
        return frozenset()

    @property
    def has_polynomials(self) -> bool:
        """Whether some exponentials are polynomials, which are less exact and have no NaN."""
        return False

    @property
    def is_deterministic(self) -> bool:
        """Whether every run on the same tensors gives the same bits."""
        return True

    def serves(self, problem: Problem) -> bool:
        """Returns whether a kernel is for a problem: of its element type, and of the d_head that
        its rows take."""
        try:
            return self.dtype == problem.dtype and self.d_head == padded_d_head(problem)
        except ValueError:
            return False

    def has_room_for(self, problem: Problem) -> bool:
        """Returns whether a kernel of a fitting variant computes a problem, if it is named: rows
        may be shorter than its d_head."""
        return self.dtype == problem.dtype and self.d_head >= problem.d_widest

    def with_room_for(self, variant: Variant) -> Self:
        """Tiles much like these that leave registers for what a variant does to every score."""
        return self

    def serves_variant(self, variant: Variant) -> bool:
        """Returns whether there are kernels for what a variant computes."""
        return variant == self.served_of(variant)

    def served_of(self, variant: Variant) -> Variant:
        """Returns what of a variant kernels may be for, whatever the others say."""
        return replace(variant, paged=False)

    def why_not(self, workload: AnyWorkload) -> str:
        """Why kernels of this do not compute a workload; "" if they do."""
        if (self.dtype, self.d_head) != (workload.dtype, workload.d_head):
            return f"it is for {self.dtype} and d_head {self.d_head}"
        if not self.serves_variant(workload.variant):
            return f"it has no kernels for {workload.variant.name}"
        return ""

    def for_dtype(self, dtype: DType) -> Self:
        """Returns the same tiles for another element type."""
        return replace(self, dtype=dtype)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kind = type(value).__name__
            # isinstance would take True for an int, and True is no tile size.
            if kind != field.type:
                raise TypeError(
                    f"{field.name}: expected {field.type}, got {value!r} of type {kind}"
                )
            minimum = 0 if field.name in self.may_be_zero else 1
            if field.type == "int" and value < minimum:
                raise ValueError(f"{field.name}: expected at least {minimum}, got {value}")

    def __str__(self) -> str:
        return self.short_form()

    def short_form(self, include_d_head: bool = True, include_tup: bool = True) -> str:
        """`(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax`.

        The tuple is (dtype, d_head, B_r, B_c, n_warps), of the sm90 family with n_warpgroups. Only
        the whole form says everything: the parser wants the d_head beside a form without it, and
        reads none without the tuple.
        """
        text = write_features(self, self.feature_table)
        if not include_tup:
            return text
        names = [name for name in self.tuple_fields if include_d_head or name != "d_head"]
        return f"({', '.join(str(getattr(self, name)) for name in names)}): {text}"

    def to_cpp_struct(self) -> str:
        """Returns the C++ literal, `FlashForwardKernelConfig{ScalarType::Half, 128, 64, ...}`."""
        values = ", ".join(self._cpp_values(self.dtype.to_cpp_str(), with_types=False))
        return f"{type(self).__name__}{{{values}}}"

    def kernel_name(self, with_types: bool = False, variant: Variant = FULL) -> str:
        """Returns the name of the kernel for `variant` as c++filt demangles it.

        With types: as profilers print it, `(int)128, (bool)1`.
        """
        values = ", ".join(
            self._cpp_values(f"(flashsmith::ScalarType){self.dtype.value}", with_types)
        )
        computed = variant.demangled(with_types)
        return (
            f"void flashsmith::{self.kernel_function}<flashsmith::{self.static_configuration}<"
            f"flashsmith::{type(self).__name__}{{{values}}}, "
            f"flashsmith::{computed}> >(flashsmith::{self.kernel_arguments})"
        )

    def _cpp_values(self, dtype: str, with_types: bool) -> list[str]:
        values = [dtype]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if with_types:
                values.append(f"({field.type}){int(value)}")
            else:
                values.append(str(value).lower())
        return values


class ForwardKernelConfig(KernelConfig):
    """That of a forward kernel."""

    operation: ClassVar[str] = "forward"

    # The share of the tensor cores' rate that the family's kernels reach, in units of the sm90
    # forward's on an H200. A family that was not measured is taken to reach as much.
    tensor_core_rate: ClassVar[float] = 1.0

    @classmethod
    def qualified_family(cls) -> str:
        """Returns the family's own name: the forward's kernels were the first."""
        return cls.family

    @property
    @abstractmethod
    def compute_warpgroups(self) -> int:
        """Groups of four warps, one on each of an SM's four tensor cores, that compute
        in a block."""

    @property
    @abstractmethod
    def resident_blocks_by_registers(self) -> int:
        """About how many blocks the registers of an SM are enough for."""

    @property
    def cost_of_a_row(self) -> float:
        """The time of a row of Q, that of the family's best tiles being 1, where the GPU is
        full."""
        return 1.0

    def attn_flop(self, n_samples: int, n_heads: int, seq_len: int) -> int:
        """Operations of the two matrix products of full attention, 4 * b * h * s^2 * d.

        What published TFLOP/s of attention are based on.
        """
        for name, value in {"n_samples": n_samples, "n_heads": n_heads, "seq_len": seq_len}.items():
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        return FULL.flop(Problem.square(self.dtype, self.d_head, n_samples, n_heads, seq_len))

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


class BackwardKernelConfig(KernelConfig):
    """That of a backward, all kernels of one call."""

    operation: ClassVar[str] = "backward"
    needs_slopes: ClassVar[bool] = True
    is_set_of_kernels: ClassVar[bool] = True

    def why_not(self, workload: AnyWorkload) -> str:
        same_bits = isinstance(workload, BackwardWorkload) and workload.deterministic
        if same_bits and not self.is_deterministic:
            return "it has results that differ from run to run"
        return super().why_not(workload)

    def suited_to(self, workload: Workload) -> Self:
        """Returns the same tiles with what is faster for a workload's mask and lengths."""
        return self

    def made_deterministic(self) -> Self:
        """The same tiles with results that have the same bits at every run, where there is such a
        configuration."""
        return self


class DecodeKernelConfig(KernelConfig):
    """That of decode: few queries a request, over the keys of a cache."""

    operation: ClassVar[str] = "decode"

    page_multiple: ClassVar[int] = 1  # of what the rows of pages are a multiple
    tensor_core_rate: ClassVar[float] = 1.0  # as ForwardKernelConfig's, with 64 rows or more
    # Splits that one block combines, after which more of them take no longer, because several
    # blocks share the work.
    max_combined_splits: ClassVar[int] = 1024

    @property
    def fp8_cache(self) -> bool:
        """Whether keys and values have 8 bits."""
        return False

    @property
    def per_token_scale(self) -> bool:
        """Whether each row of them may have a scale of its own."""
        return False

    @property
    def row_multiple(self) -> int:
        return 16 if self.fp8_cache else super().row_multiple

    @property
    def fp8_tensors(self) -> frozenset[str]:
        return frozenset("kv" if self.fp8_cache else "")

    def why_not(self, workload: AnyWorkload) -> str:
        assert isinstance(workload, DecodeWorkload)
        for name in ("fp8_cache", "per_token_scale"):
            if getattr(self, name) != getattr(workload, name):
                return f"its {name} is {getattr(self, name)}"
        return super().why_not(workload)

    def has_room_for(self, problem: Problem) -> bool:
        rows = problem.d_head, problem.d_v
        return super().has_room_for(problem) and not any(d % self.row_multiple for d in rows)

    def served_of(self, variant: Variant) -> Variant:
        """Lengths and pages are arguments of every call; no bias is added, nothing dropped."""
        plain = super().served_of(variant)
        return replace(plain, varlen=False, bias=False, dropout=False)


AttentionKernelConfig = ForwardKernelConfig | DecodeKernelConfig  # of what ``attention`` launches
