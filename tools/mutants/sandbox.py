"""Runs the tests on one mutant, in a copy of the project."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from tools.mutants.areas import Stage
from tools.mutants.compiler import write_script
from tools.mutants.kernels import link_entries

_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")
_PASSED, _FAILED, _NO_TESTS = 0, 1, 5  # pytest's exit statuses
_FILE_BYTES = 4 << 30
_POLL_SECONDS = 0.2
_RECORDING_JOBS = 4  # compilers of a run without a mutant, which has the most to compile
NO_TEST = "collection"  # stands for a test if pytest failed without naming one
_COMPILER_FAILED = re.compile(r"BuildError|CalledProcessError: Command .* '-c'")


@dataclass(frozen=True)
class Run:
    """The outcome of a stage's tests."""

    status: str  # passed, failed, timeout, not-compiled, stopped, no-tests
    seconds: float
    failed: tuple[str, ...]  # names of tests, as pytest prints them
    output: str


@dataclass
class Workshop:
    """Makes sandboxes. ``root``: the project; ``store``: kept objects."""

    root: Path
    store: Path
    stop: Event = field(default_factory=Event)

    @contextmanager
    def sandbox(self, file: str | None = None, text: str = "") -> Iterator[Sandbox]:
        """Yields a new copy of the project, in which ``file`` has another ``text``."""
        with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
            copy = Path(folder).resolve() / "project"
            copy_tree(self.root, copy)
            if file is not None:
                (copy / file).write_text(text)
            yield Sandbox(copy, self.store, self.stop)


@dataclass(frozen=True)
class Sandbox:
    copy: Path
    store: Path
    stop: Event

    def run(
        self, stage: Stage, limit: float, record: bool = False, deselected: Sequence[str] = ()
    ) -> Run:
        """Runs a stage's tests for at most ``limit`` seconds: up to the first failure, or with
        ``record`` all of them, whose objects are kept."""
        # A file that cannot be imported has failed as a whole.
        arguments = stage.arguments(self.copy, without=deselected)
        if not arguments:
            return Run("no-tests", 0.0, (), "")
        command = [
            sys.executable, "-m", "pytest", "-q", "-m", "not gpu", "-p", "no:cacheprovider",
            f"--basetemp={self.copy.parent / 'pytest'}", "--tb=short", "-rfE",
            "--continue-on-collection-errors" if record else "-x",
            *(f"--deselect={name}" for name in deselected), *arguments,
        ]  # fmt: skip
        cache, built = self.copy.parent / "cache", self.store / "kernels"
        if stage.uses_built:
            link_entries(built, cache)
        start = time.monotonic()
        status, output = self._call(command, limit, self._environment(record))
        if record and stage.uses_built:
            link_entries(cache, built)
        return self._judge(status, output, time.monotonic() - start)

    def _judge(self, status: int | str, output: str, seconds: float) -> Run:
        failed = tuple(re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.M))
        if isinstance(status, str):
            return Run(status, seconds, failed, output)
        if status == _FAILED and _COMPILER_FAILED.search(output):
            return Run("not-compiled", seconds, failed, output)
        word = {_PASSED: "passed", _NO_TESTS: "no-tests"}.get(status, "failed")
        return Run(word, seconds, failed or ((NO_TEST,) if word == "failed" else ()), output)

    def _environment(self, record: bool) -> dict[str, str]:
        scratch = self.copy.parent
        compiler = scratch / "c++"
        if not compiler.exists():
            real = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
            if real is None:
                raise SystemExit("no C++ compiler: g++, c++ or clang++ must be on PATH")
            write_script(compiler, real, self.store, self.copy)
        (scratch / "tmp").mkdir(exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLASHSMITH_", "PYTEST"))}
        paths = [str(self.copy / "src"), str(self.copy), os.environ.get("PYTHONPATH", "")]
        return kept | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "FLASHSMITH_CACHE_DIR": str(scratch / "cache"),
            "FLASHSMITH_CXX": str(compiler),
            "FLASHSMITH_JOBS": str(_RECORDING_JOBS if record else 1),
            "CXX": str(compiler),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",  # the same on every machine, and beside other work
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "TMPDIR": str(scratch / "tmp"),
            "MUTANTS_RECORD": "1" if record else "",
        }

    def _call(
        self, command: list[str], limit: float, environment: dict[str, str]
    ) -> tuple[int | str, str]:
        """Returns the exit status, or the reason why there is none, and the output."""
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            process = subprocess.Popen(
                command, cwd=self.copy, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_limit_resources,
            )  # fmt: skip
            try:
                status = self._wait(process, time.monotonic() + limit)
            finally:
                process.kill()
                process.wait()
                _end_processes_with(f"TMPDIR={environment['TMPDIR']}")
            log.seek(0)
            return status, log.read()

    def _wait(self, process: subprocess.Popen[bytes], end: float) -> int | str:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_SECONDS)
            if self.stop.is_set():
                return "stopped"
            if time.monotonic() > end:
                return "timeout"


def copy_tree(root: Path, copy: Path) -> None:
    """Copies what the tests need, without the repository and folders of builds and profiles."""
    copy.mkdir()
    for path in sorted(root.iterdir()):
        if path.name.startswith(".") or path.name in ("build", "dist", "profiles"):
            continue
        if path.is_dir():
            shutil.copytree(path, copy / path.name, ignore=_LEFT_OUT)
        else:
            shutil.copyfile(path, copy / path.name)


def _end_processes_with(variable: str) -> None:
    """Ends leftover processes of a sandbox, which may be in other process groups, by a variable."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def _limit_resources() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
