"""Fixtures of all tests: a kernel cache for the session, and the emulated kernels."""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Callable, Iterator

import pytest

from support.paths import DATA, ROOT

# The cache is kept between sessions, so that only what changed is compiled again.
os.environ.setdefault("FLASHSMITH_CACHE_DIR", str(ROOT / "build" / "test-cache"))

# Builds in the background are off, so that a call's kernel does not depend on earlier builds.
os.environ.setdefault("FLASHSMITH_BACKGROUND_BUILD", "off")

# Tensors are small and the workers of pytest-xdist fill the cores, so more torch threads would only
# wait. Torch reads this when it is loaded, and so do the programs that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from filelock import FileLock

from flashsmith.configs import KernelId, parse_kernel_name_into_instance
from flashsmith.jit import Target, build_kernels
from flashsmith.lab.bench.shard import Shard
from flashsmith.runtime import Kernel, find_kernel, load_kernels
from support.emulator_program import Run, build, run_case

# Modules draw numbers while they are collected; with a seed, all runs of the suite draw the same.
torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shard",
        metavar="I/N",
        default="1/1",
        help="run every N-th of the chosen tests, from I on",
    )
    parser.addoption(
        "--build-first",
        action="store_true",
        help="build what tests would build one at a time, before the first (emulated_kernels.txt)",
    )


# This hook runs last, after markers and names have chosen the tests.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    text = config.getoption("--shard")
    try:
        mine = [*Shard.parse(text).of(items)]
    except argparse.ArgumentTypeError:
        raise pytest.UsageError(
            f"--shard is {text}; expected I/N with 1 <= I <= N, as in 2/3"
        ) from None
    chosen = set(mine)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = mine


def pytest_configure() -> None:
    """Stops the garbage collector while tests are collected, which leaves little garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Takes what lives to the end of the session out of the garbage collector's sight.

    Torch's modules and twelve thousand tests are millions of objects, which each full collection
    would walk again.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _built_first(request: pytest.FixtureRequest) -> None:
    """One worker builds, the others wait; a kernel that is not in the list is built later."""
    if request.config.getoption("--build-first"):
        names = (DATA / "emulated_kernels.txt").read_text().splitlines()
        build_kernels(map(parse_kernel_name_into_instance, names), Target.emulator())


@pytest.fixture(scope="session")
def emulated(request: pytest.FixtureRequest) -> Callable[[KernelId], Kernel]:
    """Returns a function that finds the emulated kernel of an instance.

    The kernels that are parameters of the session's tests are built at once. Other kernels are
    built when they are looked up.
    """
    target = Target.emulator()
    load_kernels(sorted(_parameters(request.session)), target)
    return lambda instance: find_kernel(instance, target)


def _parameters(session: pytest.Session) -> set[KernelId]:
    return {
        value
        for item in session.items
        if isinstance(item, pytest.Function) and "emulated" in item.fixturenames
        for value in (item.callspec.params.values() if hasattr(item, "callspec") else ())
        if isinstance(value, KernelId)
    }


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a case of the test program, built once for all the workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "emulator-cases"
    with FileLock(f"{folder}.lock"):
        if not (folder / "cases").exists():
            folder.mkdir(exist_ok=True)
            build(folder)
    return lambda *arguments: run_case(folder / "cases", *arguments)


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield
