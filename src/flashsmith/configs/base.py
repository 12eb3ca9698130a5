"""Base classes of the configurations of all operations and families."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
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

# The configuration class of every operation and family, plainest first. Each class joins when it is
# defined, and flashsmith.configs.registry defines them in its order.
CONFIG_CLASSES: list[type[KernelConfig]] = []


class KernelConfig(ABC):
    """A kernel's configuration: one point of a family's configuration space.

    A family's class is a frozen, ordered dataclass; the C++ struct of the same name has the same
    fields in the same order. The class variables are the family's names elsewhere.
    """

    def __init_subclass__(cls) -> None:
        if "family" in cls.__dict__:
            CONFIG_CLASSES.append(cls)

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    operation: ClassVar[str]  # "forward", "backward" or "decode"
    family: ClassVar[str]  # "sm80": the family, and the folder and namespace of its kernels
    scheme: ClassVar[str] = ""  # one of several ways to do the operation: "split"
    minimum_gpu: ClassVar[str]  # the plainest architecture that some kernels run on
    exact_arch: ClassVar[bool]  # whether it is the only one
    # Whether rows are read through tensor maps, which support no expanded dimensions, and in varlen
    # batches only entries a whole number of rows apart.
    reads_by_maps: ClassVar[bool] = False
    needs_slopes: ClassVar[bool] = False  # whether kernels need derivatives of score functions
    # C++ templates and types. For a set of kernels, the function returns a struct of pointers.
    is_set_of_kernels: ClassVar[bool] = False
    kernel_function: ClassVar[str]
    static_configuration: ClassVar[str]
    kernel_arguments: ClassVar[str]
    kernel_header: ClassVar[str]  # declares these names and the C++ struct of the configuration
    kernel_pointer: ClassVar[str]  # C++ type
    markers: ClassVar[frozenset[str]]  # features that together only this class's short forms have
    tuple_fields: ClassVar[tuple[str, ...]]  # of the short form
    feature_table: ClassVar[tuple[Feature, ...]]
    may_be_zero: ClassVar[frozenset[str]]  # fields for which 0 has a meaning

    dtype: DType
    d_head: int
    B_r: int
    B_c: int

    @abstractmethod
    def problems(self, gpu: str) -> list[str]:
        """Returns why this cannot be built or run on `gpu`, a sentence for each reason.

        Raises:
            ValueError: `gpu` is not a known architecture.
        """

    @classmethod
    def kernels_name(cls) -> str:
        """Returns the name of its kernels within the family: a scheme's name, and the operation."""
        return f"{cls.scheme}_{cls.operation}".lstrip("_")

    @classmethod
    def qualified_family(cls) -> str:
        """Returns the name that identifies its kernels among all: `sm90_backward`."""
        return f"{cls.family}_{cls.kernels_name()}"

    @classmethod
    def runs_on(cls, capability: Capability) -> bool:
        """Returns whether GPUs of this compute capability have the instructions of its kernels."""
        own = get_gpu_architecture(cls.minimum_gpu).compute_capability
        return capability == own if cls.exact_arch else capability >= own

    def is_buildable(self, gpu: str | None = None) -> bool:
        """Returns whether it can be built for `gpu`; None: for the plainest GPU that it runs on."""
        return not self.problems(gpu or self.plainest_gpu)

    @property
    def newer_gpus(self) -> tuple[str, ...]:
        """The newer architectures whose additional instructions its kernels use, oldest first."""
        return ()

    @property
    def plainest_gpu(self) -> str:
        """The plainest architecture that this configuration runs on."""
        return self.minimum_gpu

    @property
    @abstractmethod
    def threads_per_block(self) -> int:
        """The threads of a block, including those that only load."""

    @property
    def loading_warps(self) -> int:
        """The warps of a block that only load: a warpgroup if tensor maps are used."""
        return WARPGROUP_SIZE // WARP_SIZE if self.reads_by_maps else 0

    @property
    def compute_warps(self) -> int:
        """The warps of a block that compute."""
        return self.threads_per_block // WARP_SIZE - self.loading_warps

    @property
    @abstractmethod
    def shared_memory_parts(self) -> dict[str, int]:
        """The bytes of a block's dynamic shared memory by content, in memory order."""

    @property
    def shared_memory_bytes(self) -> int:
        """The bytes of a block's dynamic shared memory."""
        return sum(self.shared_memory_parts.values())

    @property
    @abstractmethod
    def held_registers(self) -> dict[str, int]:
        """The registers of a computing thread by content, for the largest kernel."""

    @property
    def moved_registers(self) -> tuple[int, int] | None:
        """Registers of a loading and of a computing thread after setmaxnreg moved some between
        them; None: none are moved."""
        return None

    @property
    def row_multiple(self) -> int:
        """The number that d_head and d_v of a call are multiples of: the elements of 16 bytes."""
        return 8

    @property
    def fp8_tensors(self) -> frozenset[str]:
        """The FP8 tensors among q, k and v, e4m3."""
        return frozenset()

    @property
    def has_polynomials(self) -> bool:
        """Whether some exponentials are polynomials, which are less exact and do not keep NaN."""
        return False

    @property
    def is_deterministic(self) -> bool:
        """Whether every run on the same tensors gives the same bits."""
        return True

    def serves(self, problem: Problem) -> bool:
        """Returns whether the kernel is for a problem's element type, and for the d_head that its
        rows take."""
        try:
            return self.dtype == problem.dtype and self.d_head == padded_d_head(problem)
        except ValueError:
            return False

    def has_room_for(self, problem: Problem) -> bool:
        """Returns whether a kernel of a suitable variant can compute a problem if the caller names
        it: rows may be shorter than its d_head."""
        return self.dtype == problem.dtype and self.d_head >= problem.d_widest

    def adapted_to(self, variant: Variant) -> Self:
        """Returns the configuration that suits a variant best: similar tiles that leave registers
        for its work on every score, and the knobs that pay with its mask."""
        return self

    def versions_for(self, variant: Variant) -> Sequence[Self]:
        """Returns the configurations with the same tiles among which a workload's sizes decide."""
        return (self,)

    def in_no_order(self) -> Self:
        """Returns the configuration without the order of its tiles, for comparisons: kernels that
        are equal so take the same time for each tile."""
        return self

    def serves_variant(self, variant: Variant) -> bool:
        """Returns whether there are kernels for a variant."""
        return variant == self.served_of(variant)

    def served_of(self, variant: Variant) -> Variant:
        """Returns the part of a variant that single features of it allow, whatever the others
        are."""
        return replace(variant, paged=False) if variant.paged else variant

    def why_not(self, workload: AnyWorkload) -> str:
        """Returns why its kernels do not compute a workload; "" if they do."""
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
            # isinstance would accept True as an int, but True is no tile size.
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
        """Returns `(FP16, 128, 64, 64, 4):
        async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax`.

        The tuple is (dtype, d_head, B_r, B_c, n_warps), for the sm90 family with n_warpgroups. Only
        the whole form is complete: the parser needs the d_head beside a form without it, and cannot
        read a form without the tuple.
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

        With types, values are as profilers print them, `(int)128, (bool)1`.
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
    """A forward kernel's configuration."""

    operation: ClassVar[str] = "forward"

    # The tensor cores' rate that the family's kernels reach, relative to the sm90 forward on an
    # H200. A family that was not measured is assumed to reach 1.
    tensor_core_rate: ClassVar[float] = 1.0

    @classmethod
    def qualified_family(cls) -> str:
        """Returns the family's name alone, because the forward's kernels were the first."""
        return cls.family

    @property
    @abstractmethod
    def compute_warpgroups(self) -> int:
        """The groups of four warps, one on each of an SM's four tensor cores, that compute in a
        block."""

    @property
    @abstractmethod
    def resident_blocks_by_registers(self) -> int:
        """About how many blocks an SM's registers allow at a time."""

    def queries_of_tile(self, problem: Problem) -> int:
        """Returns the number of queries whose rows a tile has."""
        return self.B_r

    def heads_of_tiles(self, problem: Problem) -> int:
        """Returns the number of heads that have tiles of their own."""
        return problem.heads

    @property
    def cost_of_a_row(self) -> float:
        """The time of a row of Q on a full GPU, relative to the family's best tiles."""
        return 1.0

    def attn_flop(self, n_samples: int, n_heads: int, seq_len: int) -> int:
        """Returns the operations of full attention's two matrix products, 4 * b * h * s^2 * d.

        Published TFLOP/s of attention are based on this number.
        """
        for name, value in {"n_samples": n_samples, "n_heads": n_heads, "seq_len": seq_len}.items():
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        return FULL.flop(Problem.square(self.dtype, self.d_head, n_samples, n_heads, seq_len))

    def total_flop(self, n_samples: int, n_heads: int, seq_len: int) -> int:
        """Returns `attn_flop` plus the operations of the online softmax; an exponential counts as
        one.

        The counts are 5 a score (scale, max, subtraction, exponential, sum), 3 + d a row and K/V
        block (difference of maxima, exponential, rescaling of l and of O's row), and d a row at the
        end (division of O's row).
        """
        matmuls = self.attn_flop(n_samples, n_heads, seq_len)
        n_KV_blocks = -(-seq_len // self.B_c)
        row = 5 * seq_len + (3 + self.d_head) * n_KV_blocks + self.d_head
        return matmuls + n_samples * n_heads * seq_len * row


class BackwardKernelConfig(KernelConfig):
    """A backward's configuration, for all kernels of one call."""

    operation: ClassVar[str] = "backward"
    needs_slopes: ClassVar[bool] = True
    is_set_of_kernels: ClassVar[bool] = True

    def why_not(self, workload: AnyWorkload) -> str:
        same_bits = isinstance(workload, BackwardWorkload) and workload.deterministic
        if same_bits and not self.is_deterministic:
            return "it has results that differ from run to run"
        return super().why_not(workload)

    def suited_to(self, workload: Workload) -> Self:
        """Returns the same tiles with the options that are faster for a workload's mask and
        lengths."""
        return self

    def made_deterministic(self) -> Self:
        """Returns the same tiles with bitwise reproducible results, if there is such a
        configuration."""
        return self


class DecodeKernelConfig(KernelConfig):
    """Decode's configuration, for few queries a request over the keys of a KV cache."""

    operation: ClassVar[str] = "decode"

    page_multiple: ClassVar[int] = 1  # the rows of a page are a multiple of this
    # The max number of splits that one block combines; beyond it several blocks share the work, so
    # more splits take no longer.
    max_combined_splits: ClassVar[int] = 1024
    # The max number of splits that wait for each other, and combine a share each, where that is
    # faster than a second launch.
    max_waiting_splits: ClassVar[int] = 0

    @property
    @abstractmethod
    def tensor_core_rate(self) -> float:
        """The share of the tensor cores' rate that kernels of 64 rows or more reach, as
        ForwardKernelConfig's."""

    @property
    def fp8_cache(self) -> bool:
        """Whether keys and values are FP8."""
        return False

    @property
    def per_token_scale(self) -> bool:
        """Whether each row of keys and values may have a scale (per-token scales)."""
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
        """Returns the variant without varlen and pages, which are arguments of every call, and
        without bias and dropout, which decode lacks."""
        plain = super().served_of(variant)
        return replace(plain, varlen=False, bias=False, dropout=False)


AttentionKernelConfig = ForwardKernelConfig | DecodeKernelConfig  # ``attention`` launches these
