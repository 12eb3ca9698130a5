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
    """Test files, and which of their tests (``-k``); files that do not exist are left out."""

    files: tuple[str, ...]
    only: str = ""

    def arguments(self, root: Path, without: Container[str] = ()) -> list[str]:
        """For pytest; empty if none of the files exists, or all are in ``without``."""
        names = [f"tests/{name}" for name in self.files if (root / "tests" / name).exists()]
        files = [name for name in names if name not in without]
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
_SOME_HOPPER = (
    "batches_and_many_tiles or maximum_that_moves or large_logits or packed_input or see_no_key"
    " or forward_returns"
)
_HOPPER = (
    Stage(("test_causal_offsets.py", "test_lazy_rescale.py"), "hopper or sm90"),
    Stage(("test_hopper_forward.py",), _SOME_HOPPER),
    Stage(("test_far_offsets.py", "test_properties.py"), "not sm80"),
    Stage(("test_hopper_forward.py",), "test_matches_the_reference and 77"),
    Stage(("test_hopper_synchronisation.py",)),
)
_AMPERE = (
    Stage(("test_forward.py",), "not built_when"),
    Stage(("test_kernels.py",), "not matches_the_reference"),
    Stage(("test_lazy_rescale.py", "test_far_offsets.py", "test_causal_offsets.py"), "not hopper"),
    Stage(("test_synchronisation.py",)),
)
_EMULATOR = (
    Stage(("test_emulator.py", "test_emulator_hopper.py")),
    Stage(("test_forward.py",), "new_contiguous or packed or scale"),
    Stage(("test_hopper_forward.py",), "batches_and_many_tiles or packed_input"),
    Stage(("test_lazy_rescale.py", "test_far_offsets.py", "test_workspace.py")),
    Stage(("test_hopper_synchronisation.py", "test_synchronisation.py")),
)
_HOST = (
    Stage(("test_bad_input.py", "test_hopper_bad_input.py", "test_misalignment.py")),
    Stage(("test_forward.py", "test_runtime.py", "test_workspace.py", "test_host.py")),
    Stage(("test_far_offsets.py",)),
    Stage(("test_hopper_forward.py",), _SOME_HOPPER),
)

AREAS: tuple[Area, ...] = (
    Area("hopper", 48, (f"{KERNELS}/hopper/*.cuh",), _HOPPER),
    Area("ampere", 22, (f"{KERNELS}/ampere/*.cuh",), _AMPERE),
    Area("ptx", 10, (f"{KERNELS}/ptx/*.cuh",), _EMULATOR),
    Area("host", 26, (f"{CSRC}/host/*.*", f"{KERNELS}/flash_attention.cuh"), _HOST),
    Area("emulator", 32, (f"{CSRC}/emulator/*.*",), _EMULATOR),
    Area(
        "build", 12, (f"{PACKAGE}/build/*.py", f"{PACKAGE}/codegen.py", f"{PACKAGE}/settings.py"),
        (
            Stage(("test_cache.py", "test_codegen.py", "test_settings.py", "test_doctor.py")),
            Stage(("test_build.py",)),
        ),
    ),
    Area(
        "configs", 10, (f"{PACKAGE}/configs/*.py",),
        (
            Stage(("test_configs.py", "test_hopper_configs.py", "test_names.py", "test_knobs.py")),
            Stage(("test_codegen.py", "test_select.py", "test_tuning.py")),
        ),
    ),
    Area(
        "functional", 10, (f"{PACKAGE}/functional/*.py", f"{PACKAGE}/runtime/*.py"),
        (
            Stage(("test_select.py", "test_workspace.py", "test_runtime.py")),
            Stage(("test_bad_input.py", "test_forward.py", "test_tuning.py")),
        ),
    ),
    Area(
        "bench", 12, (f"{PACKAGE}/bench/*.py",),
        (
            Stage(("test_bench.py", "test_timer.py", "test_candidates.py")),
            Stage(("test_ncu.py", "test_tuning.py", "test_properties.py")),
        ),
        left_out=("plots.py",),  # the looks of pictures
    ),
    Area(
        "tuning", 6, (f"{PACKAGE}/tuning/*.py",), (Stage(("test_tuning.py", "test_select.py")),)
    ),
    Area(
        "report", 6, (f"{PACKAGE}/report/*.py",), (Stage(("test_report.py",)),),
        left_out=("charts.py", "svg.py"),  # the looks of pictures
    ),
    Area(
        "cli", 6, (f"{PACKAGE}/cli/*.py",),
        (
            Stage(("test_cli.py", "test_run_kernels.py")),
            Stage(("test_bench.py", "test_tuning.py", "test_report.py", "test_ncu.py")),
        ),
    ),
)  # fmt: skip
BY_NAME = {area.name: area for area in AREAS}
