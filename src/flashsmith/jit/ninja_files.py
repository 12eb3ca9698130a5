"""Writes ninja's input and runs ninja, so that it and the compilers end with this process."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from flashsmith.errors import ToolchainError
from flashsmith.jit.attached import attached
from flashsmith.jit.toolchain import find_ninja

STATUS = re.compile(r"\[(\d+)/\d+\] (.+)")  # a line that reports a finished job
_PATIENCE_SECONDS = 10


class FailedJob(NamedTuple):
    """A job that failed, from ninja's output."""

    description: str
    status: str  # ninja's line, which has the exit code
    log: str  # what the job printed

    @classmethod
    def first(cls, output: Sequence[str]) -> FailedJob | None:
        """Returns the first one in the output; None if ninja itself failed."""
        at = next((i for i, line in enumerate(output) if line.startswith("FAILED: ")), None)
        if at is None or not (started := STATUS.fullmatch(output[at - 1])):
            return None
        log = []
        for line in output[at + 2 :]:  # skips the command, which ninja repeats
            if STATUS.fullmatch(line) or line.startswith("ninja: "):
                break
            log.append(line)
        return cls(started[2], output[at], "\n".join(log))


def shell_value(command: Sequence[str]) -> str:
    """Returns a command as the value of a ninja variable.

    Raises:
        ToolchainError: A word has a character that a line of the file cannot hold; the message
            names the word.
    """
    for word in command:
        if re.search(r"[\n\r\0]", word) or not _is_unicode(word):
            raise ToolchainError(
                f"the path or flag {word!r} of a command has a line break or bytes that are no "
                "UTF-8, and compilers are given neither; move what it names to another path"
            )
    return shlex.join(command).replace("$", "$$")


def response_file(paths: Iterable[Path]) -> str:
    """Returns the text of a response file, which gcc and clang read for a word ``@file``."""
    return "".join(re.sub(r"([\s\\'\"])", r"\\\1", str(path)) + "\n" for path in paths)


def run_ninja(
    folder: Path, jobs: int, finished: Callable[[str], None] = lambda _: None, file: str = ""
) -> list[str] | None:
    """Runs ninja; returns None, or the output of ninja and the compilers if a job failed.

    Args:
        folder: The working directory; ``file`` (build.ninja) is relative to it.
        finished: A callback that gets the description of each finished job.
    """
    output = []
    of_file = ["-f", file] if file else []
    command = [str(find_ninja()), "-C", str(folder), "-j", str(jobs), *of_file]
    with subprocess.Popen(
        # Ninja passes the signal on to all processes of a compiler.
        attached(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=os.environ | {"NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C"},
        start_new_session=True,  # Ctrl-C reaches this process alone, which ends ninja in order
    ) as process:
        try:
            for line in process.stdout or ():
                output.append(line.rstrip("\n"))
                if match := STATUS.fullmatch(output[-1]):
                    finished(match[2])
            failed = process.wait() != 0
        except BaseException:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_PATIENCE_SECONDS)
            process.kill()
            raise
    return output if failed else None


def _is_unicode(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
