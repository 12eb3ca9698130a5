"""Forks fresh processes from one that has imported everything and called nothing."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from support.paths import ROOT


class Zygote:
    """A process that forks a child for each job, so that no job knows of an earlier one.

    Kernels that a child has loaded are also loaded in the parent, for later children, because
    loading takes as long as ten calls.
    """

    def __init__(self, *modules: str) -> None:
        """Starts the process, which imports ``modules`` before the first fork."""
        folders = [str(ROOT / "src"), str(ROOT / "tests"), *sys.path]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.zygote", *modules],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip

    def run(self, job: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the result of ``job(*arguments)`` in a child. Raises RuntimeError if the child
        failed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        _send(self._process.stdin, pickle.dumps((job, arguments)))
        succeeded, result = pickle.loads(_receive(self._process.stdout))
        if not succeeded:
            raise RuntimeError(f"the child of the zygote failed: {result}")
        return result

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


_LENGTH_BYTES = 8


def _send(stream: BinaryIO | Any, message: bytes) -> None:
    stream.write(len(message).to_bytes(_LENGTH_BYTES, "little") + message)
    stream.flush()


def _receive(stream: BinaryIO | Any) -> bytes:
    """Returns the next message; empty at the end of the stream."""
    length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
    message: bytes = stream.read(length)
    return message


def _serve(modules: list[str]) -> None:
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a job's output must not mix with the answers
    for module in modules:
        importlib.import_module(module)
    make_an_error()
    while message := _receive(requests):
        answer, found = _in_a_child(message)
        _send(answers, answer)
        _load(found)


def make_an_error() -> None:
    """Makes C++ throw its first error, which takes half a second: it reads symbols."""
    import tvm_ffi

    with contextlib.suppress(Exception):
        tvm_ffi.load_module("/nowhere.so")


def _in_a_child(message: bytes) -> tuple[bytes, bytes]:
    """Returns the answer to a request, and the kernels that the child loaded."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, "a fork of several threads may hang"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "wb") as stream:
            answer, found = _do(message)
            _send(stream, answer)
            _send(stream, found)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        answer, found = _receive(stream), _receive(stream)
    _, status = os.waitpid(child, 0)
    if status != 0:
        return pickle.dumps((False, f"wait status {status}")), b""
    return answer, found


def _do(message: bytes) -> tuple[bytes, bytes]:
    from flashsmith.jit import Target
    from flashsmith.runtime import kernels

    try:
        job, arguments = pickle.loads(message)
        answer = pickle.dumps((True, job(*arguments)))
    except BaseException:
        answer = pickle.dumps((False, traceback.format_exc()))
    return answer, pickle.dumps(sorted(kernels.loaded_instances(Target.emulator())))


def _load(found: bytes) -> None:
    from flashsmith.jit import Target
    from flashsmith.runtime import kernels

    with contextlib.suppress(Exception):  # the next child that needs one reports the error
        kernels.load_kernels(pickle.loads(found) if found else (), Target.emulator())


if __name__ == "__main__":
    _serve(sys.argv[1:])
