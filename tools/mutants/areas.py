"""The parts of the project: their files, their share of a sample, and the tests that see them.

The tests of an area come in stages, the ones most likely to notice first. A mutant that one stage
kills skips the rest; a survivor has passed all stages. Stages are small, because a mutant of a
kernel compiles every kernel that its tests need again.
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
    """Test files, by patterns, and a filter for their tests (``-k``).

    uses_built: Whether kernels may come from a cache that was filled without a mutant.
    """

    files: tuple[str, ...]
    only: str = ""
    uses_built: bool = True

    def arguments(self, root: Path, without: Container[str] = ()) -> list[str]:
        """Returns pytest's arguments; empty if no file exists, or all are in ``without``."""
        found = {
            path.relative_to(root).as_posix(): None
            for name in self.files
            for path in sorted((root / "tests").glob(name))
        }
        files = [name for name in found if name not in without]
        return [*files, *(["-k", self.only] if self.only else [])] if files else []


@dataclass(frozen=True)
class Area:
    """Files that are covered by the same tests.

    patterns: Its files, below the root.
    but: Files among them that belong to another area.
    is_sampled: Whether a sample includes it if no areas are named. All sampled areas have the same
        share.
    left_out: Names of files that are not mutated.
    """

    name: str
    patterns: tuple[str, ...]
    stages: tuple[Stage, ...]
    but: tuple[str, ...] = ()
    is_sampled: bool = True
    left_out: tuple[str, ...] = ()

    def files(self, root: Path) -> list[Path]:
        found = {path for pattern in self.patterns for path in root.glob(pattern)}
        others = {path for pattern in self.but for path in root.glob(pattern)}
        return sorted(path for path in found - others if path.name not in self.left_out)


# These tests run a few kernels of each family that differ in kind.
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
    Stage(("kernels/test_pages.py",), "pages_of_many_sizes and queue and 64"),
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
    Stage(("kernels/test_semantics.py", "kernels/test_mods.py")),
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
    Stage(("kernels/test_far_offsets.py", "kernels/test_knobs.py", "kernels/test_wild_lengths.py")),
    Stage(("decode/test_bad_input.py", "backward/test_bad_input.py", "decode/test_append.py")),
    Stage(("decode/test_splits.py", "backward/test_order.py", "backward/test_persistent.py")),
    Stage(("kernels/test_shapes.py", "kernels/test_correct.py"), _SOME),
)


def _backward(family: str) -> tuple[Stage, ...]:
    """Returns the stages of a backward: one family's kernels first, from few to many."""
    return (
        Stage(("backward/test_edges.py",), f"{family} and edges_of_tiles"),
        Stage(("backward/test_edges.py",), f"{family} and (heads or windows or sequence)"),
        Stage(("backward/test_edges.py",), family),
        Stage(("backward/test_order.py", "backward/test_persistent.py")),
        Stage(("backward/test_properties.py", "backward/test_dropout.py")),
        Stage(("backward/test_correct.py", "backward/test_far_offsets.py")),
        Stage(("backward/test_synchronisation.py", "backward/test_autograd.py")),
    )


_DECODE = (
    Stage(("decode/test_correct.py",), "heads_of_q or number_of_splits or several_queries"),
    Stage(("decode/test_correct.py",), "not every_tile_boundary"),
    Stage(("decode/test_teams.py", "decode/test_combine.py"), "rows_is_right or added_up"),
    Stage(("decode/test_cache.py", "decode/test_splits.py", "decode/test_trees.py")),
    Stage(("decode/test_windows.py",)),
    Stage(("decode/test_correct.py", "decode/test_teams.py", "decode/test_combine.py")),
    Stage(("decode/test_faults.py", "decode/test_synchronisation.py", "runtime/test_host.py")),
)
_DECODE_WGMMA = (
    Stage(("decode/test_warpgroups.py",), "few_and_many"),
    Stage(("decode/test_warpgroups.py",)),
    Stage(("decode/test_many_queries.py", "decode/test_synchronisation.py")),
)
_FP8 = (
    Stage(("emulator/rules/test_sm90.py",), "plain_computation and bytes"),
    Stage(("decode/test_per_token_scale.py", "decode/test_fp8.py"), "not every_tile_boundary"),
    Stage(("kernels/test_fp8.py",)),
    Stage(("decode/test_per_token_scale.py", "decode/test_fp8.py"), "every_tile_boundary"),
    Stage(("decode/test_append_fp8.py", "ops/test_fp8.py")),
)
_APPEND = (
    Stage(("decode/test_append.py",)),
    Stage(("decode/test_append_fp8.py", "decode/test_bad_input.py")),
)
_OPS = (
    Stage(("ops/test_bad_input.py", "ops/test_forward.py", "ops/test_repeated_calls.py")),
    Stage(("ops/test_semantics.py", "ops/test_mods.py", "ops/test_few_queries.py",
           "ops/test_decode_choice.py", "ops/test_first_use.py", "ops/test_dropout.py")),
    Stage(("decode/test_api.py", "decode/test_bad_input.py", "decode/test_append.py",
           "decode/test_many_queries.py", "backward/test_bad_input.py",
           "backward/test_autograd.py")),
    Stage(("ops/test_*.py", "decode/test_operator.py", "decode/test_functions.py",
           "decode/test_fp8.py", "decode/test_per_token_scale.py", "kernels/test_bad_*.py")),
)  # fmt: skip


def _kernels(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{KERNELS}/{folder}/{name}.cuh" for name in names)


# These are the device code of one operation by family; other files are the forward's, or shared.
_BACKWARD_SM80 = _kernels("sm80", "*backward*", "kept_*", "column_groups")
_BACKWARD_SM90 = _kernels("sm90", "*backward*", "key_tile*", "head_groups")
_BACKWARD_SHARED = _kernels(
    "attention", "dQ_sums", "gradient_rows", "query_range", "score_gradient"
)
_DECODE_SM80 = _kernels("sm80", "decode*")
_DECODE_SM90 = _kernels("sm90", "decode*", "cached_keys")
_DECODE_SHARED = _kernels(
    "attention", "decode_*", "key_splits", "combine_kernel", "partial_results", "split_*"
)
_FP8_FILES = (
    *_kernels("*", "*e4m3*"), *_kernels("sm80", "per_token_scale"),
    *_kernels("sm90", "transposer", "output_sums"),
)  # fmt: skip
_APPEND_FILES = _kernels("attention", "cache_append")

# The host's files for GPUs, which the tests of the host do not run.
_OF_GPUS = ("driver.cpp", "driver.h", "launch_gpu.cpp", "launch_gpu.h")

AREAS: tuple[Area, ...] = (
    Area(
        "host", (f"{CSRC}/host/**/*.cpp", f"{CSRC}/host/**/*.h", f"{KERNELS}/*.*"), _HOST,
        left_out=_OF_GPUS,
    ),
    Area(
        "attention", _kernels("attention", "*"),
        (
            *_SM90[:2], *_SM80[:3],
            Stage(("kernels/test_semantics.py",), "sinks"), Stage(("kernels/test_dropout.py",)),
            Stage(("kernels/test_tile_tables.py",)), *_SM90[2:],
        ),
        but=(*_BACKWARD_SHARED, *_DECODE_SHARED, *_FP8_FILES, *_APPEND_FILES),
    ),
    Area(
        "forward_sm80", _kernels("sm80", "*"), _SM80,
        but=(*_BACKWARD_SM80, *_DECODE_SM80, *_FP8_FILES),
    ),
    Area(
        "forward_sm90", _kernels("sm90", "*"), _SM90,
        but=(*_BACKWARD_SM90, *_DECODE_SM90, *_FP8_FILES),
    ),
    Area("backward_sm80", (*_BACKWARD_SM80, *_BACKWARD_SHARED), _backward("sm80")),
    Area("backward_sm90", _BACKWARD_SM90, _backward("sm90")),
    Area("decode_sm80", (*_DECODE_SM80, *_DECODE_SHARED), _DECODE, but=_FP8_FILES),
    Area("decode_sm90", _DECODE_SM90, _DECODE_WGMMA),
    Area("fp8", _FP8_FILES, _FP8),
    Area("append", _APPEND_FILES, _APPEND),
    Area("ops", (f"{PACKAGE}/ops/*.py",), _OPS),
    Area(
        "mods", (f"{PACKAGE}/mods/*.py", f"{KERNELS}/mods/*.cuh"),
        tuple(Stage((f,)) for f in ("mods/test_*.py", "ops/test_mods.py", "kernels/test_mods.py")),
    ),
    Area(
        "integrations", (f"{PACKAGE}/integrations/*.py", f"{PACKAGE}/flash_attn/**/*.py"),
        (
            Stage(("integrations/test_*.py",), "not gradients and not minilm"),
            Stage(("integrations/test_*.py",)),
        ),
        left_out=("vllm.py", "vllm_attention.py", "vllm_batch.py"),  # their tests need vLLM
    ),
    Area(
        "selection", (f"{PACKAGE}/selection/*.py",),
        (
            Stage(("selection/test_*.py", "configs/test_families.py")),
            Stage(("cli/test_build_for_attention.py", "ops/test_first_use.py",
                   "ops/test_few_queries.py", "ops/test_decode_choice.py", "tuning/test_*.py",
                   "decode/test_teams.py", "ops/test_fp8.py")),
        ),
    ),
    Area(
        "runtime", (f"{PACKAGE}/runtime/*.py",),
        (
            Stage(("runtime/test_*.py", "ops/test_first_use.py")),
            Stage(("ops/test_repeated_calls.py", "ops/test_forward.py", "ops/test_semantics.py",
                   "decode/test_api.py", "decode/test_splits.py")),
            Stage(("cli/test_*.py", "jit/test_cache*.py", "report/test_counts.py")),
        ),
    ),
    Area("ptx", (f"{KERNELS}/ptx/*.cuh",), _EMULATOR, is_sampled=False),
    Area("emulator", (f"{CSRC}/emulator/*.*",), _EMULATOR, is_sampled=False),
    Area(
        "jit", (f"{PACKAGE}/jit/*.py", f"{PACKAGE}/*.py"),
        (
            Stage(("jit/test_cache*.py", "codegen/test_codegen.py", "package/test_settings.py",
                   "cli/test_doctor.py"), uses_built=False),
            Stage(("jit/test_*.py", "codegen/test_*.py", "ops/test_first_use.py"),
                  uses_built=False),
        ),
        is_sampled=False,
    ),
    Area(
        "configs", (f"{PACKAGE}/configs/**/*.py",),
        (
            Stage(("configs/test_*.py",)),
            Stage(("codegen/test_codegen.py", "selection/test_*.py", "tuning/test_*.py")),
            Stage(("cli/test_*.py", "kernels/test_knobs.py")),
        ),
        is_sampled=False,
    ),
    Area(
        "bench", (f"{PACKAGE}/lab/bench/*.py", f"{PACKAGE}/reference/*.py"),
        (
            Stage(("bench/test_*.py", "reference/test_*.py")),
            Stage(("tuning/test_*.py", "lab/test_*.py", "tools/test_run_kernels.py")),
        ),
        is_sampled=False,
        left_out=("plots.py", "panels.py"),  # tests do not see the looks of pictures
    ),
    Area(
        "tuning", (f"{PACKAGE}/lab/tuning/*.py",),
        (Stage(("tuning/test_*.py", "lab/test_*.py", "selection/test_select*.py")),),
        is_sampled=False,
    ),
    Area(
        "report", (f"{PACKAGE}/lab/report/*.py",), (Stage(("report/test_*.py",)),),
        is_sampled=False,
        left_out=("charts.py", "svg.py"),  # tests do not see the looks of pictures
    ),
    Area(
        "cli", tuple(f"{PACKAGE}/{folder}/*.py" for folder in ("cli", "lab/commands")),
        (
            Stage(("selection/test_*.py", "cli/test_*.py", "tools/test_run_kernels.py",
                   "configs/test_kernel_sets.py", "soak/test_*.py")),
            Stage(("bench/test_*.py", "tuning/test_*.py", "report/test_*.py")),
        ),
        is_sampled=False,
    ),
    Area(
        "soak", (f"{PACKAGE}/lab/soak/*.py",),
        (
            Stage(("soak/test_*.py", "reference/test_*.py")),
            Stage(("kernels/test_properties.py",)),
        ),
        is_sampled=False,
    ),
)  # fmt: skip
BY_NAME = {area.name: area for area in AREAS}
