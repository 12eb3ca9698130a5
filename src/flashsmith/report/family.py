"""What the report asks of a kernel family. Each family answers in a module of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from flashsmith.configs import KernelId, Variant
from flashsmith.configs.base import ForwardKernelConfig
from flashsmith.report.banks import BankMap

C = TypeVar("C", bound=ForwardKernelConfig)

# A unit of a multiprocessor, and what it does in a cycle. In the order of the charts.
UNITS = {
    "shared memory": "128 bytes a cycle: a wavefront of a warp, or what wgmma and TMA move",
    "tensor cores": "at the rated speed, which mma.sync does not reach on sm_90",
    "issue slots": "4 instructions of a warp a cycle; counted on the shortest way through the loop",
    "exponentials": "16 a cycle",
    "L2 cache": "5120 bytes a cycle to all multiprocessors together",
}
SHARED_BYTES_PER_CYCLE = 128
EX2_PER_CYCLE = 16  # CUDA programming guide, "Throughput of Native Arithmetic Instructions"
# Read by all multiprocessors together: NVIDIA's A100 whitepaper. H100's is not published.
L2_BYTES_PER_CYCLE = 5120


@dataclass(frozen=True)
class Fact:
    """A field of a configuration in words."""

    field: str
    value: str
    meaning: str


@dataclass(frozen=True)
class Region:
    """A part of a block's dynamic shared memory."""

    name: str
    bytes: int
    meaning: str


@dataclass(frozen=True)
class Role:
    """Warps of a block that do the same, and the registers of their threads."""

    name: str
    warps: int
    registers: int
    holds: Mapping[str, int]  # what is in these registers, as far as the configuration says


@dataclass(frozen=True)
class Work:
    """What a launch consists of.

    tiles: Blocks of B_r rows of Q; the sm80 family has a thread block for each.
    visits: Visits of a tile to a block of K and V; a part of one where some warpgroups of the tile
        let the block pass.
    loads: Blocks of K and V that tiles load.
    """

    tiles: float
    visits: float
    loads: float

    def __mul__(self, n: int) -> Work:
        return Work(n * self.tiles, n * self.visits, n * self.loads)


@dataclass(frozen=True)
class Sample:
    """A launch with one head that is counted on the emulator."""

    seq_len_q: int
    seq_len_k: int
    work: Work

    def __str__(self) -> str:
        if self.seq_len_q == self.seq_len_k:
            return f"one head, sequence {self.seq_len_q}"
        return f"one head, {self.seq_len_q} rows of Q, {self.seq_len_k} of K and V"


@dataclass(frozen=True)
class Counts:
    """The emulator's counters (runtime/counters.py), split.

    whole: Of the launch ``of``.
    per_visit: What one more visit of a tile to a block of K and V costs.
    per_tile: What a tile costs beside its visits: loading Q, storing O.
    """

    of: Sample
    whole: dict[str, int]
    per_visit: dict[str, float]
    per_tile: dict[str, float]

    @property
    def conflicts(self) -> float:
        """Wavefronts of a visit that are there because of bank conflicts."""
        return self.per_visit["shared_wavefronts"] - self.per_visit["shared_wavefronts_ideal"]


@dataclass(frozen=True)
class Launch:
    """The counts of a launch, made of what its tiles and their visits count."""

    counts: Counts
    work: Work
    per_load: frozenset[str]  # counters of the blocks that are loaded, not of those worked on

    def visits(self, name: str) -> float:
        n = self.work.loads if name in self.per_load else self.work.visits
        return n * self.counts.per_visit[name]

    def beside(self, name: str) -> float:
        return self.work.tiles * self.counts.per_tile[name]

    def __getitem__(self, name: str) -> float:
        return self.visits(name) + self.beside(name)


class Family(ABC, Generic[C]):
    """One kernel family, as the report explains it."""

    name: ClassVar[str]  # "sm80"
    copies: ClassVar[str]  # how K and V come to shared memory
    unit_of_work: ClassVar[str]  # of the tables that compare tiles of different sizes
    reader: ClassVar[str]  # what reads the rows of the bank maps
    per_load: ClassVar[frozenset[str]] = frozenset()  # see Launch

    @abstractmethod
    def explain(self, config: C) -> list[Fact]:
        """One fact for each field, in their order."""

    @abstractmethod
    def shared_memory(self, config: C) -> list[Region]:
        """The parts of shared memory, in their order; together ``config.shared_memory_bytes``."""

    @abstractmethod
    def roles(self, config: C, registers: int) -> list[Role]:
        """The warps of a block. registers: a thread's at the launch, as ptxas reports them."""

    @abstractmethod
    def samples(self, config: C, variant: Variant) -> tuple[Sample, Sample]:
        """Two launches whose counts tell what a visit costs, and what a tile beside its visits."""

    @abstractmethod
    def work(self, config: C, variant: Variant, seq_len_q: int, seq_len_k: int) -> Work:
        """Of one head."""

    @abstractmethod
    def shared_bytes(self, config: C, launch: Launch) -> float:
        """Bytes that pass through shared memory."""

    @abstractmethod
    def exponentials_per_visit(self, config: C) -> float:
        """Exponentials that the special-function units compute, at least."""

    @abstractmethod
    def compute_warps(self, config: C) -> int:
        """Warps of a block that compute."""

    @abstractmethod
    def n_units_of_work(self, config: C) -> float:
        """Of ``unit_of_work``, in a visit."""

    @abstractmethod
    def bank_maps(self, config: C) -> Sequence[BankMap]:
        """Which banks one phase reads, without and with the swizzle."""

    @abstractmethod
    def quantities(
        self, visit: Mapping[str, float], tile: Mapping[str, float], unit: str, scale: float
    ) -> dict[str, float]:
        """Counts that a change of the configuration may change, by their names in the tables.

        visit, tile: What a visit, and a tile beside its visits, counts.
        unit: "a visit", or what takes its place where tiles differ in size.
        scale: On what a visit counts.
        """

    def launch(self, instance: KernelId, counts: Counts, seq_len: int) -> Launch:
        """Self-attention of one head."""
        config: Any = instance.config  # of this family
        work = self.work(config, instance.variant, seq_len, seq_len)
        return Launch(counts, work, self.per_load)

    def visit(self, counts: Counts) -> Launch:
        """One visit."""
        return Launch(counts, Work(0, 1, 1), self.per_load)


def loaded_bytes(launch: Launch) -> float:
    """Bytes that the multiprocessors load from L2."""
    return launch["global_load_bytes"] + launch["tma_load_bytes"]


def fma_per_visit(config: ForwardKernelConfig) -> int:
    """Multiply-adds of both matrix products of a visit."""
    return 2 * config.B_r * config.B_c * config.d_head


def value_text(value: Any) -> str:
    """A field's value, as the page prints it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
