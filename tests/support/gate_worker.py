"""Runs calls in child processes, so that a crash is a result like any other.

It reads lines of JSON, [operation, kind, arguments], and answers each with a line: the verdict on
each argument.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from support.paths import ROOT
from support.zygote import make_an_error

_SECONDS = 60  # for one case


class Worker:
    """A handle of the process that runs the calls."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "support.gate_worker"]
        path = os.pathsep.join([str(ROOT / "tests"), *filter(None, sys.path)])
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    def verdicts(self, operation: str, kind: str, arguments: Sequence[str]) -> dict[str, str]:
        """Returns the verdict on each argument: what is wrong, or an empty string."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([operation, kind, [*arguments]]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the worker has ended"
        found: dict[str, str] = json.loads(answer)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """Answers lines until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library's output must not mix with the answers
    warnings.simplefilter("ignore")
    _warm_up()
    for line in sys.stdin:
        answers.write(json.dumps(_answer(*json.loads(line))) + "\n")
        answers.flush()


def _warm_up() -> None:
    """Does once what every child would repeat: imports, finding kernels, expected results."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    import flashsmith
    from support.gate import expected_of
    from support.gate_calls import OPERATIONS

    for operation in OPERATIONS.values():
        if not operation.differentiates:  # torch's autograd does not outlive a fork
            expected_of(operation)
    t = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16)
    with suppress(TypeError, ValueError, RuntimeError):
        flashsmith.attention(t, t, t.to(torch.complex64))
    make_an_error()
    with torch.autograd.forward_ad.dual_level():
        torch.add(torch.autograd.forward_ad.make_dual(t, t), t)
    torch.func.jvp(torch.sum, (t.float(),), (t.float(),))
    torch.func.functionalize(torch.sum)(t)
    torch.complex(t.float(), t.float()).conj().imag.neg()
    torch.nested.as_nested_tensor([t[0], t[0]], layout=torch.jagged)
    make_fx(torch.add, tracing_mode="symbolic")(t, t)
    torch.export.export(torch.nn.Identity(), (t,), strict=False)
    torch.vmap(torch.func.grad(torch.sum))(t.float())
    with FakeTensorMode() as mode:
        q = mode.from_tensor(t)
        torch.ops.flashsmith.attention_forward(q, q, q)


def _answer(operation: str, kind: str, arguments: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    while len(found) < len(arguments):
        found |= _in_a_child(operation, kind, [a for a in arguments if a not in found])
    return found


def _in_a_child(operation: str, kind: str, arguments: list[str]) -> dict[str, str]:
    """Returns the verdicts that a child reaches, and the reason if it died."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as results:
            _run(operation, kind, arguments, results)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as results:
        found = dict(json.loads(line) for line in results)
    _, status = os.waitpid(child, 0)
    if len(found) < len(arguments):
        code = os.waitstatus_to_exitcode(status)
        cause = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        found[arguments[len(found)]] = f"the process died of {cause}"
    return found


def _run(operation: str, kind: str, arguments: list[str], results: IO[str]) -> None:
    from support.gate import verdict
    from support.gate_calls import OPERATIONS

    faulthandler.disable()
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # a library's handler would print a stack
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for argument in arguments:
        signal.alarm(_SECONDS)
        words = verdict(OPERATIONS[operation], kind, argument)
        results.write(json.dumps([argument, words]) + "\n")
        results.flush()


if __name__ == "__main__":
    main()
