"""Kernels of one process run the code of their own modules, whatever is in other modules."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flashsmith import codegen
from flashsmith.configs import KernelId
from flashsmith.errors import CacheError
from flashsmith.jit import KernelCache, Module, SourceTree, Target, build_kernels, find_host
from flashsmith.runtime import Kernel, emulation, find_kernels, kernels
from support.caches import kernel_free_cache
from support.emulator_program import CXX
from support.paths import CSRC
from support.sm80_kernels import BASE
from support.workshop import replace as replace_text

EMULATOR = Target.emulator()
INSTANCE = KernelId(BASE)


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_loaded", {})


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dtype = BASE.dtype.to_torch_dtype()
    q, k, v = (torch.randn(1, 96, 2, BASE.d_head).to(dtype) for _ in range(3))
    return q, k, v


def run(
    kernel: Kernel, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, dict[str, int]]:
    """Returns the output of a kernel, and what the emulator counted."""
    o = torch.empty_like(q)
    with emulation(kernel) as emulator:
        kernel(q, k, v, o, BASE.d_head**-0.5)
    return o, emulator.counters()


def check(o: torch.Tensor, *qkv: torch.Tensor) -> None:
    q, k, v = (each.float().transpose(1, 2) for each in qkv)
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    torch.testing.assert_close(o.float(), exact, rtol=2e-3, atol=2e-3)


def load(module: Module) -> Kernel:
    found = kernels.load_module(module, INSTANCE, EMULATOR)
    assert isinstance(found, Kernel)
    return found


def edited(folder: Path, cache: KernelCache) -> Module:
    """Returns a module with the symbols of INSTANCE whose kernel doubles the output."""
    csrc = Path(shutil.copytree(CSRC, folder / "csrc"))
    replace_text(
        csrc / "include/flashsmith/sm80/epilogue.cuh",
        "O[i] * factor[half], O[i + 1] * factor[half]",
        "2 * O[i] * factor[half], 2 * O[i + 1] * factor[half]",
    )
    sources = SourceTree(csrc, codegen.generate)
    (module,) = build_kernels([INSTANCE], EMULATOR, sources=sources, cache=cache)
    host, packaged = find_host(sources=sources, caches=[cache]), find_host()
    assert host and packaged and host.directory.name == packaged.directory.name
    return module


def test_two_kernels_with_functions_of_the_same_names_have_their_own_code() -> None:
    """The C++ names of their functions are equal; only the symbols differ."""
    configs = [BASE, replace(BASE, B_c=BASE.B_c * 2), replace(BASE, swizzled=not BASE.swizzled)]
    found = find_kernels([KernelId(config) for config in configs], EMULATOR)
    q, k, v = inputs()
    counted = []
    for kernel in (*found, *found):
        o, counters = run(kernel, q, k, v)
        check(o, q, k, v)
        counted.append(counters)
    assert counted[:3] == counted[3:]
    assert len({tuple(each.items()) for each in counted}) == len(configs)


def test_two_modules_with_the_same_symbols_have_their_own_code(
    tmp_path: Path, nothing_loaded: None
) -> None:
    """A kernel of other sources has the symbols of this one, as after an update of the package."""
    cache = kernel_free_cache(tmp_path / "cache")
    (module,) = build_kernels([INSTANCE], EMULATOR, cache=cache)
    other = edited(tmp_path, cache)
    assert module.functions == other.functions and module.path != other.path
    q, k, v = inputs()
    kernel = load(module)
    expected = run(kernel, q, k, v)[0]
    kernels._loaded.clear()
    doubled = load(other)
    for _ in range(2):
        torch.testing.assert_close(run(doubled, q, k, v)[0], 2 * expected)
        assert torch.equal(run(kernel, q, k, v)[0], expected)


def test_a_loaded_kernel_outlives_its_file(tmp_path: Path, nothing_loaded: None) -> None:
    cache = kernel_free_cache(tmp_path / "cache")
    (module,) = build_kernels([INSTANCE], EMULATOR, cache=cache)
    q, k, v = inputs()
    kernel = load(module)
    expected = run(kernel, q, k, v)
    before = module.path.stat().st_ino
    (again,) = build_kernels([INSTANCE], EMULATOR, cache=cache, force=True)
    assert again.path == module.path and again.path.stat().st_ino != before
    after = run(kernel, q, k, v)
    assert torch.equal(after[0], expected[0]) and after[1] == expected[1]
    shutil.rmtree(module.directory)
    assert torch.equal(run(kernel, q, k, v)[0], expected[0])
    assert kernels.find_kernel(INSTANCE, EMULATOR) is kernel


def test_a_file_that_was_refused_is_read_again_once_it_is_replaced(
    tmp_path: Path, nothing_loaded: None
) -> None:
    """The loader knows files by their paths, so that a refused one must not stay open."""
    (module,) = build_kernels([INSTANCE], EMULATOR, cache=kernel_free_cache(tmp_path / "cache"))
    kept = module.path.rename(tmp_path / "kept.so")
    command = [str(CXX), "-shared", "-fPIC", "-x", "c++", "-", "-o", str(module.path)]
    subprocess.run(command, input="void nothing() {}", text=True, check=True)
    with pytest.raises(CacheError, match=r"cannot be loaded here: .* has no function"):
        load(module)
    module.path.unlink()
    kept.rename(module.path)
    q, k, v = inputs()
    check(run(load(module), q, k, v)[0], q, k, v)
