"""A process that runs calls in children of its own, so that a crash is a result as others are.

Reads lines of JSON, [operation, kind]; writes one for each, what ``verdicts`` returns.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import warnings
from typing import IO

from support.paths import ROOT

_SECONDS = 60  # for one case


class Worker:
    """The process, from the outside."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "support.gate_worker"]
        path = os.pathsep.join([str(ROOT / "tests"), *filter(None, sys.path)])
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    def verdicts(self, operation: str, kind: str) -> dict[str, str]:
        """ "" for each argument, or what is wrong."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([operation, kind]) + "\n")
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
    """Until there are no more lines."""
    from support.gate_calls import OPERATIONS

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    warnings.simplefilter("ignore")
    for name, operation in OPERATIONS.items():  # kernels are found, and built, once
        if "gradients" not in name:  # torch's autograd does not outlive a fork
            operation.call(**operation.make(1))
    for line in sys.stdin:
        answers.write(json.dumps(_answer(*json.loads(line))) + "\n")
        answers.flush()


def _answer(operation: str, kind: str) -> dict[str, str]:
    from support.gate import arguments_of
    from support.gate_calls import OPERATIONS

    found: dict[str, str] = {}
    arguments = arguments_of(OPERATIONS[operation])
    while len(found) < len(arguments):
        found |= _in_a_child(operation, kind, [a for a in arguments if a not in found])
    return found


def _in_a_child(operation: str, kind: str, arguments: list[str]) -> dict[str, str]:
    """As far as the child comes, and why it came no further."""
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
    for argument in arguments:
        signal.alarm(_SECONDS)
        words = verdict(OPERATIONS[operation], kind, argument)
        results.write(json.dumps([argument, words]) + "\n")
        results.flush()


if __name__ == "__main__":
    main()
