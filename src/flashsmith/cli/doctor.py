"""`flashsmith doctor`: reports what this machine has, what is missing, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import typer
from rich.text import Text

from flashsmith import settings
from flashsmith.cli.cache import folder_bytes
from flashsmith.cli.options import JsonOption
from flashsmith.cli.tables import print_json, print_list
from flashsmith.errors import FlashsmithError, ToolchainError
from flashsmith.jit import (
    PACKAGE_SOURCES,
    KernelCache,
    Target,
    find_cxx,
    find_host,
    find_ninja,
    find_tvm_ffi,
    list_modules,
)
from flashsmith.jit.disassembler import find_cuobjdump
from flashsmith.jit.kernel_compilers import NvccCompiler, NvrtcCompiler, find_kernel_compiler
from flashsmith.jit.toolchain import require_cxx20
from flashsmith.lab.commands.driver import Gpu, find_gpus

_INSTALL_TORCH = "`pip install 'flashsmith[torch]'`"
_CXX, _CUDA, _HOST = "C++ compiler", "CUDA compiler", "host library"
# One check of each group has to be fine; the first one is named if none is.
_BUILD_NEEDS = ((_CXX,), ("ninja",))  # of emulated kernels
_EMULATOR_NEEDS = ((_CXX, _HOST), ("ninja", _HOST), ("tvm-ffi",), ("torch",), ("cache",))
_GPU_NEEDS = (("GPU",), (_CUDA,), ("torch's CUDA",), ("ninja",), *_EMULATOR_NEEDS)


@dataclass(frozen=True)
class Check:
    """The result of one check of the machine."""

    name: str
    ok: bool
    found: str  # or what is wrong
    advice: str = ""  # what to do; empty if nothing is needed


def doctor(as_json: JsonOption = False) -> None:
    """Show what this machine has, and what to do about what is missing.

    Exit code 1 if kernels cannot run here, not even on the emulator.
    """
    checks = [*_check_gpus(), *_check_tools(), *_check_torch(), _check_safetensors()]
    checks += [_probe("cache", _check_cache), _check_host()]
    environment = [_check_setting(setting) for setting in settings.ALL]
    usable = {check.name for check in checks if check.ok}
    verdict = _verdict(usable)
    on_emulator, on_gpu = (not _lacking(needs, usable) for needs in (_EMULATOR_NEEDS, _GPU_NEEDS))
    if as_json:
        print_json(
            {
                "checks": [asdict(check) for check in checks],
                "environment": [asdict(check) for check in environment],
                "runs_on_emulator": on_emulator,
                "runs_on_gpu": on_gpu,
                "verdict": verdict,
            }
        )
    else:
        _print(checks, otherwise="missing")
        typer.echo("\nEnvironment variables:")
        _print(environment, otherwise="wrong")
        typer.echo(f"\n{verdict}")
    if not on_emulator:
        raise typer.Exit(1)


def _print(checks: list[Check], otherwise: str) -> None:
    """Prints the checks; ``otherwise`` is the status of one that failed."""
    rows = []
    for check in checks:
        status = Text("ok", "green") if check.ok else Text(otherwise, "red")
        text = "\n".join(filter(None, (check.found, check.advice)))
        rows.append((status, check.name, text))
    print_list(rows)


def _verdict(usable: set[str]) -> str:
    if lacking := _lacking(_EMULATOR_NEEDS, usable):
        return f"This machine cannot run kernels yet; it lacks: {lacking}."
    for_gpus = _lacking(_GPU_NEEDS, usable)
    if for_gpus:
        also = " and compiles them for GPUs" if _CUDA in usable else ""
        parts = [f"This machine runs kernels on the emulator{also}"]
    else:
        parts = ["This machine builds kernels and runs them on its GPU, and on the emulator"]
    if lacking := _lacking(_BUILD_NEEDS, usable):
        parts.append(f"to build more for the emulator it lacks: {lacking}")
    if for_gpus:
        parts.append(f"to run on a GPU it lacks: {for_gpus}")
    return f"{'; '.join(parts)}."


def _lacking(needs: Iterable[Sequence[str]], usable: set[str]) -> str:
    return ", ".join(dict.fromkeys(group[0] for group in needs if usable.isdisjoint(group)))


def _probe(name: str, find: Callable[[], str]) -> Check:
    try:
        return Check(name, True, find())
    except (FlashsmithError, ValueError) as error:
        return Check(name, False, str(error))  # these messages say what to do


def _check_gpus() -> Iterator[Check]:
    gpus, why_none = find_gpus()
    if not gpus:
        yield Check("driver", False, why_none, "for a GPU, install NVIDIA's driver")
        yield Check("GPU", False, "none", "nothing, if the emulator is enough")
        return
    yield Check("driver", True, gpus[0].driver)
    # Supported GPUs come first: one is enough, and torch's default depends on its own order.
    for gpu in sorted(gpus, key=lambda gpu: not gpu.is_supported):
        yield _check_gpu(gpu)


def _check_gpu(gpu: Gpu) -> Check:
    capability = ".".join(map(str, gpu.compute_capability))
    found = f"{gpu.name}, compute capability {capability} ({gpu.arch}), {gpu.memory}"
    advice = "" if gpu.is_supported else "too old: kernels need 8.0 (Ampere) or newer"
    return Check("GPU", gpu.is_supported, found, advice)


def _check_tools() -> Iterator[Check]:
    def cuda() -> str:
        compiler = find_kernel_compiler(Target.cuda("sm_80"), Path(), PACKAGE_SOURCES.csrc)
        if isinstance(compiler, NvrtcCompiler):
            found = compiler.nvrtc
            return f"NVRTC {found.version}, {found.library}, by {found.found_by}"
        assert isinstance(compiler, NvccCompiler)
        nvcc = compiler.cuda.nvcc
        return f"nvcc {nvcc.version}, {nvcc.path}, by {nvcc.found_by}"

    def cxx() -> str:
        compiler = find_cxx()
        require_cxx20(compiler)
        return f"{compiler.version}, {compiler.path}, by {compiler.found_by}; takes C++20"

    yield _probe(_CUDA, cuda)
    yield _probe(_CXX, cxx)
    yield _check_cuobjdump()
    yield _probe("ninja", lambda: str(find_ninja()))
    yield _probe("tvm-ffi", lambda: find_tvm_ffi().version)


def _check_cuobjdump() -> Check:
    try:
        return Check("cuobjdump", True, f"{find_cuobjdump()}; builds lint their machine code")
    except ToolchainError as error:
        found = f"{error}; without it kernels are built all the same, but not linted"
        return Check("cuobjdump", False, found)


def _check_torch() -> Iterator[Check]:
    try:
        import torch  # imported here, because torch takes seconds, and may be missing or broken
    except (ImportError, OSError) as error:
        yield Check("torch", False, f"cannot be imported: {error}", _INSTALL_TORCH)
        yield Check("torch's CUDA", False, "there is no torch")
        return
    yield Check("torch", True, str(torch.__version__))
    if torch.version.cuda is None:
        advice = "for a GPU, install a CUDA build of torch (https://pytorch.org/get-started)"
        yield Check("torch's CUDA", False, "this torch is built for CPUs", advice)
    elif not torch.cuda.is_available():
        found = f"CUDA {torch.version.cuda}, but torch finds no GPU"
        advice = "for a GPU, check the driver and CUDA_VISIBLE_DEVICES"
        yield Check("torch's CUDA", False, found, advice)
    else:
        yield Check("torch's CUDA", True, str(torch.version.cuda))


def _check_safetensors() -> Check:
    try:
        return Check("safetensors", True, importlib.metadata.version("safetensors"))
    except importlib.metadata.PackageNotFoundError:
        advice = f"needed for `run --input` and `--out`: {_INSTALL_TORCH}"
        return Check("safetensors", False, "not installed", advice)


def _check_cache() -> str:
    cache = KernelCache()
    modules = len(list_modules())  # raises if the folder is not safe to load from
    existing = cache.root
    while not existing.exists():
        existing = existing.parent
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(
            f"{cache.root} cannot be written; set {settings.CACHE_DIR.name} to a folder of your own"
        )
    if existing != cache.root:
        return f"{cache.root}, which the first build makes"
    return f"{cache.root}, {modules} kernels, {folder_bytes(cache.root) / 1e6:.1f} MB"


def _check_host() -> Check:
    try:
        host = find_host()
    except FlashsmithError as error:
        return Check(_HOST, False, str(error))
    if host is None:
        return Check(_HOST, False, "not built", "nothing: the first call builds it, once")
    return Check(_HOST, True, f"{host.path}; calls need no {_CXX}")


def _check_setting(setting: settings.Setting[object]) -> Check:
    try:
        value = setting.get()
    except ValueError as error:
        return Check(setting.name, False, str(error))
    if value is None:
        return Check(setting.name, True, f"not set; default: {setting.default}")
    return Check(setting.name, True, str(value))
