"""The parts of the project: their files, their share of a sample, and the tests that see them.

The tests of an area come in stages, the most likely to notice first. A mutant that a stage kills
needs no further; one that survived has passed all of them. Stages are small: a mutant of a kernel
compiles each kernel anew that they ask for.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

CSRC = "src/flashsmith/csrc"
KERNELS = f"{CSRC}/include/flashsmith"
PACKAGE = "src/flashsmith"


@dataclass(frozen=True)
class Stage:
    """Test files, by patterns, and which of their tests (``-k``)."""

    files: tuple[str, ...]
    only: str = ""

    def arguments(self, root: Path, without: Container[str] = ()) -> list[str]:
        """For pytest; empty if none of the files exists, or all are in ``without``."""
        found = {p.name: None for name in self.files for p in sorted((root / "tests").glob(name))}
        files = [f"tests/{name}" for name in found if f"tests/{name}" not in without]
        return [*files, *(["-k", self.only] if self.only else [])] if files else []


@dataclass(frozen=True)
class Area:
    name: str
    share: int  # of a sample, relative to the other areas'
    patterns: tuple[str, ...]  # of its files, below the root
    stages: tuple[Stage, ...]
    left_out: tuple[str, ...] = ()  # file names

    def files(self, root: Path) -> list[Path]:
        found = {path for pattern in self.patterns for path in root.glob(pattern)}
        return sorted(path for path in found if path.name not in self.left_out)


# 10 kernels of the sm90 family, which have every field both ways.
_SOME_SM90 = (
    "batches_and_many_tiles or maximum_that_moves or large_logits or packed_input or see_no_key"
    " or forward_returns or once"
)
_SM90 = (
    Stage(
        ("test_causal_offsets.py", "test_lazy_rescale.py"),
        "neighbouring or (sm90 or stale) and not sees",
    ),
    Stage(("test_sm90_forward.py",), _SOME_SM90),
    Stage(("test_far_offsets.py", "test_fma_exponentials.py"), "not sm80"),
    Stage(("test_causal_offsets.py",), "sees_its_keys"),
    Stage(("test_tile_order.py", "test_host.py", "test_sm90_synchronisation*.py")),
    Stage(("test_properties.py",), "wgmma"),
)
_SM80 = (
    Stage(("test_forward.py",), "not built_when"),
    Stage(("test_kernels.py",), "not matches_the_reference"),
    Stage(("test_lazy_rescale.py", "test_far_offsets.py"), "sm80"),
    Stage(("test_kernels.py",), "matches_the_reference and fp16_d128_r64_c64"),
    Stage(("test_knobs.py", "test_synchronisation.py")),
    Stage(("test_properties.py",), "not wgmma"),
)
_EMULATOR = (
    Stage(("test_emulator*.py", "test_host.py")),
    Stage(("test_forward.py",), "new_contiguous or packed or scale"),
    Stage(("test_sm90_forward.py",), "batches_and_many_tiles or packed_input"),
    Stage(("test_lazy_rescale.py", "test_far_offsets.py", "test_workspace.py")),
    Stage(("test_sm90_synchronisation*.py", "test_knobs.py")),
)
_HOST = (
    Stage(
        ("test_bad_input.py", "test_sm90_bad_input.py", "test_misalignment.py", "test_overlap.py")
    ),
    Stage(("test_forward.py", "test_runtime*.py", "test_workspace.py", "test_host.py")),
    Stage(("test_far_offsets.py", "test_knobs.py")),
    Stage(("test_sm90_forward.py",), _SOME_SM90),
)

AREAS: tuple[Area, ...] = (
    Area("sm90", 46, (f"{KERNELS}/sm90/*.cuh",), _SM90),
    Area("sm80", 22, (f"{KERNELS}/sm80/*.cuh",), _SM80),
    Area("ptx", 10, (f"{KERNELS}/ptx/*.cuh",), _EMULATOR),
    Area("host", 26, (f"{CSRC}/host/*.*", f"{KERNELS}/*.cuh"), _HOST),
    Area("emulator", 30, (f"{CSRC}/emulator/*.*",), _EMULATOR),
    Area(
        "jit", 12, (f"{PACKAGE}/jit/*.py", f"{PACKAGE}/*.py"),
        (
            Stage(("test_cache*.py", "test_codegen.py", "test_settings.py", "test_doctor.py")),
            Stage(("test_build*.py", "test_lint*.py", "test_headers.py", "test_kernel_sources.py",
                   "test_disassembler.py", "test_machine_code.py", "test_first_use.py")),
        ),
    ),
    Area(
        "configs", 10, (f"{PACKAGE}/configs/**/*.py",),
        (
            Stage(("test_configs*.py", "test_sm90_configs*.py", "test_names.py")),
            Stage(("test_codegen.py", "test_select*.py", "test_tables.py", "test_tuning*.py")),
            Stage(("test_cli*.py", "test_knobs.py")),
        ),
    ),
    Area(
        "selection", 10,
        tuple(f"{PACKAGE}/{folder}/*.py" for folder in ("selection", "ops", "runtime")),
        (
            Stage(("test_select*.py", "test_tables.py", "test_fits.py", "test_workspace.py",
                   "test_runtime*.py", "test_counters.py", "test_first_use.py")),
            Stage(("test_build_for_attention.py", "test_bad_input.py", "test_forward.py",
                   "test_tuning*.py", "test_cli*.py")),
        ),
    ),
    Area(
        "bench", 12, (f"{PACKAGE}/bench/*.py", f"{PACKAGE}/reference/*.py"),
        (
            Stage(("test_bench*.py", "test_compare.py")),
            Stage(("test_ncu*.py", "test_tuning*.py", "test_lab.py", "test_run_kernels.py")),
        ),
        left_out=("plots.py", "panels.py"),  # the looks of pictures
    ),
    Area(
        "tuning", 6, (f"{PACKAGE}/tuning/*.py",),
        (Stage(("test_tuning*.py", "test_lab.py", "test_select*.py")),),
    ),
    Area(
        "report", 6, (f"{PACKAGE}/report/*.py",), (Stage(("test_report*.py",)),),
        left_out=("charts.py", "svg.py"),  # the looks of pictures
    ),
    Area(
        "cli", 6, (f"{PACKAGE}/cli/*.py",),
        (
            Stage(("test_explain.py", "test_select.py", "test_cli*.py", "test_run_kernels.py",
                   "test_kernel_sets.py", "test_doctor.py", "test_soak*.py")),
            Stage(("test_bench*.py", "test_tuning*.py", "test_report*.py", "test_ncu*.py")),
        ),
    ),
    Area(
        "soak", 4, (f"{PACKAGE}/soak/*.py",),
        (Stage(("test_soak*.py", "test_compare.py")), Stage(("test_properties.py",))),
    ),
)  # fmt: skip
BY_NAME = {area.name: area for area in AREAS}
