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
        found = {
            path.relative_to(root).as_posix(): None
            for name in self.files
            for path in sorted((root / "tests").glob(name))
        }
        files = [name for name in found if name not in without]
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


# Of each family, kernels that differ in kind.
_SOME = (
    "batches_and_many_tiles or maximum_that_moves or large_logits or packed_input or see_no_key"
    " or once"
)
_SOME_SM90 = f"({_SOME}) and (wgmma or sm90)"
_SM90 = (
    Stage(
        ("kernels/test_causal_offsets.py", "kernels/test_lazy_rescale.py"),
        "neighbouring or (sm90 or stale) and not sees",
    ),
    Stage(("kernels/test_shapes.py", "kernels/test_correct.py"), _SOME_SM90),
    Stage(("kernels/test_far_offsets.py",), "not sm80"),
    Stage(("kernels/test_correct.py",), "polynomials"),
    Stage(("kernels/test_causal_offsets.py",), "sees_its_keys and not sm80"),
    Stage(("kernels/test_orders.py", "runtime/test_host.py"), "not warp_orders"),
    Stage(("kernels/test_synchronisation.py", "kernels/test_properties.py"), "wgmma"),
)
_SM80 = (
    Stage(("ops/test_forward.py",), "not built_when"),
    Stage(
        ("kernels/test_shapes.py", "kernels/test_correct.py"),
        f"({_SOME}) and not wgmma and not sm90",
    ),
    Stage(("kernels/test_lazy_rescale.py", "kernels/test_far_offsets.py"), "sm80"),
    Stage(("kernels/test_correct.py",), "declared and fp16_d128_r64_c64"),
    Stage(("kernels/test_causal_offsets.py",), "sm80"),
    Stage(("kernels/test_knobs.py",)),
    Stage(("kernels/test_synchronisation.py", "kernels/test_properties.py"), "not wgmma"),
)
_EMULATOR = (
    Stage(("emulator/rules/test_*.py", "runtime/test_host.py")),
    Stage(("ops/test_forward.py",), "new_contiguous or packed or scale"),
    Stage(("kernels/test_shapes.py",), "batches_and_many_tiles or packed_input"),
    Stage(
        (
            "kernels/test_lazy_rescale.py",
            "kernels/test_far_offsets.py",
            "runtime/test_workspace.py",
        )
    ),
    Stage(("kernels/test_synchronisation.py", "kernels/test_knobs.py")),
)
_HOST = (
    Stage(
        (
            "kernels/test_bad_input.py",
            "ops/test_bad_input.py",
            "kernels/test_misalignment.py",
            "kernels/test_overlap.py",
        )
    ),
    Stage(("ops/test_forward.py", "runtime/test_*.py", "ops/test_repeated_calls.py")),
    Stage(("kernels/test_far_offsets.py", "kernels/test_knobs.py")),
    Stage(("kernels/test_shapes.py", "kernels/test_correct.py"), _SOME),
)

AREAS: tuple[Area, ...] = (
    Area("sm90", 30, (f"{KERNELS}/sm90/*.cuh",), _SM90),
    Area("attention", 24, (f"{KERNELS}/attention/*.cuh",), (*_SM90[:2], *_SM80[:3], *_SM90[2:])),
    Area("sm80", 14, (f"{KERNELS}/sm80/*.cuh",), _SM80),
    Area("ptx", 10, (f"{KERNELS}/ptx/*.cuh",), _EMULATOR),
    Area("host", 26, (f"{CSRC}/host/**/*.*", f"{KERNELS}/*.*"), _HOST),
    Area("emulator", 30, (f"{CSRC}/emulator/*.*",), _EMULATOR),
    Area(
        "jit", 12, (f"{PACKAGE}/jit/*.py", f"{PACKAGE}/*.py"),
        (
            Stage(("jit/test_cache*.py", "codegen/test_codegen.py", "package/test_settings.py",
                   "cli/test_doctor.py")),
            Stage(("jit/test_*.py", "codegen/test_*.py", "ops/test_first_use.py")),
        ),
    ),
    Area(
        "configs", 10, (f"{PACKAGE}/configs/**/*.py",),
        (
            Stage(("configs/test_*.py",)),
            Stage(("codegen/test_codegen.py", "selection/test_*.py", "tuning/test_*.py")),
            Stage(("cli/test_*.py", "kernels/test_knobs.py")),
        ),
    ),
    Area(
        "selection", 10,
        tuple(f"{PACKAGE}/{folder}/*.py" for folder in ("selection", "ops", "runtime")),
        (
            Stage(("selection/test_*.py", "configs/test_families.py", "runtime/test_*.py",
                   "ops/test_first_use.py")),
            Stage(("cli/test_build_for_attention.py", "ops/test_bad_input.py",
                   "ops/test_forward.py", "tuning/test_*.py", "cli/test_*.py")),
        ),
    ),
    Area(
        "bench", 12, (f"{PACKAGE}/bench/*.py", f"{PACKAGE}/reference/*.py"),
        (
            Stage(("bench/test_*.py", "reference/test_*.py")),
            Stage(("tuning/test_*.py", "lab/test_*.py", "tools/test_run_kernels.py")),
        ),
        left_out=("plots.py", "panels.py"),  # the looks of pictures
    ),
    Area(
        "tuning", 6, (f"{PACKAGE}/tuning/*.py",),
        (Stage(("tuning/test_*.py", "lab/test_*.py", "selection/test_select*.py")),),
    ),
    Area(
        "report", 6, (f"{PACKAGE}/report/*.py",), (Stage(("report/test_*.py",)),),
        left_out=("charts.py", "svg.py"),  # the looks of pictures
    ),
    Area(
        "cli", 6, tuple(f"{PACKAGE}/{folder}/*.py" for folder in ("cli", "lab")),
        (
            Stage(("selection/test_*.py", "cli/test_*.py", "tools/test_run_kernels.py",
                   "configs/test_kernel_sets.py", "soak/test_*.py")),
            Stage(("bench/test_*.py", "tuning/test_*.py", "report/test_*.py")),
        ),
    ),
    Area(
        "soak", 4, (f"{PACKAGE}/soak/*.py",),
        (
            Stage(("soak/test_*.py", "reference/test_*.py")),
            Stage(("kernels/test_properties.py",)),
        ),
    ),
    # Not in the committed sample, which was drawn before they were there.
    Area(
        "mods", 0, (f"{PACKAGE}/mods/*.py", f"{KERNELS}/mods/*.cuh"),
        (Stage(("mods/test_*.py", "ops/test_mods.py")), Stage(("kernels/test_mods.py",))),
    ),
    Area(
        "integrations", 0, (f"{PACKAGE}/integrations/*.py", f"{PACKAGE}/flash_attn/*.py"),
        (Stage(("integrations/test_*.py",)),),
    ),
)  # fmt: skip
BY_NAME = {area.name: area for area in AREAS}
