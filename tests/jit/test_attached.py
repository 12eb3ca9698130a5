"""Compilers end with the process that started them, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import support.tiny_build as tiny
from flashsmith.errors import ToolchainError
from flashsmith.jit import attached
from support.workshop import Workshop

_PATIENCE = 30.0  # seconds
# The program builds in a thread, as a background build does, and its parent continues.
_IN_BACKGROUND = """
import pathlib, signal, sys, threading, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore these
signal.signal(signal.SIGINT, signal.default_int_handler)
from flashsmith.jit import SourceTree, build_kernels
from support import tiny_build as tiny
csrc, pids = map(pathlib.Path, sys.argv[1:])
sources = SourceTree(csrc, tiny.generate)
arguments = (tiny.INSTANCES[:2], tiny.EMULATOR)
build = lambda: build_kernels(*arguments, jobs=4, sources=sources)
threading.Thread(target=build, daemon=True).start()
while not pids.exists():
    time.sleep(0.01)
"""


def start(workshop: Workshop, pids: Path, ending: str) -> subprocess.Popen[str]:
    folders = [Path(tiny.__file__).parents[1], Path(attached.__file__).parents[2]]
    return subprocess.Popen(
        [sys.executable, "-c", _IN_BACKGROUND + ending, workshop.csrc, pids],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("ending", "number"),
    [
        ("", None),
        ("sys.exit(3)", None),
        ("raise KeyboardInterrupt", None),
        ("time.sleep(60)", signal.SIGTERM),
        ("time.sleep(60)", signal.SIGHUP),
        ("time.sleep(60)", signal.SIGINT),
        ("time.sleep(60)", signal.SIGKILL),
    ],
)
@pytest.mark.parametrize("step", ["-c", "-shared"], ids=["compiler", "linker"])
def test_compilers_end_with_their_process(
    workshop: Workshop, ending: str, number: signal.Signals | None, step: str
) -> None:
    pids = workshop.root / "pids"
    honest = workshop.compiler.read_text()
    # The compiler proper is a child of the program that is called, and waits.
    waits = f"echo $$ >> {pids}; sleep 60 & echo $! >> {pids}; wait"
    slow = f'case " $* " in *" {step} "*) {waits};; esac\nexec '
    workshop.compiler.write_text(honest.replace("exec ", slow))
    with start(workshop, pids, ending) as process:
        if number is not None:
            while not pids.exists():
                time.sleep(0.01)
            process.send_signal(number)
        process.wait(_PATIENCE)
    deadline = time.monotonic() + _PATIENCE
    while running := [pid for pid in pids.read_text().split() if tiny.is_running(pid)]:
        assert time.monotonic() < deadline, running
        time.sleep(0.05)
    workshop.compiler.write_text(honest)
    assert "link" in workshop.new_compilations(2)
    assert list((workshop.cache / "staging").iterdir()) == []


def test_a_program_whose_parent_is_gone_does_not_start(tmp_path: Path) -> None:
    script = attached.attached(["/bin/touch", str(tmp_path / "file")])
    at = script.index("-c") + 1
    script[at] = script[at].replace(f"== {os.getpid()}", "== 1234567890")
    assert subprocess.run(script, check=False).returncode == 0
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("executable", ["", "/usr/bin/uwsgi", "/nowhere/game"])
def test_a_program_with_python_inside_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, executable: str
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert executable not in attached.attached(["/bin/true"])
    subprocess.run(attached.attached(["/bin/true"]), check=True)
    monkeypatch.setenv("PATH", "/nowhere")
    assert attached.attached(["/bin/true"]) == ["/bin/true"]


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "caf\udce9"])
@pytest.mark.parametrize("place", ["sources", "compiler"])
def test_a_path_that_no_file_of_ninja_holds_is_named(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    """Ninja would read the line after the break as a heuristic."""
    if place == "sources":
        workshop.csrc = workshop.csrc.rename(workshop.root / name)
    else:
        compiler = workshop.compiler.rename(workshop.root / name)
        monkeypatch.setenv("FLASHSMITH_CXX", os.fspath(compiler))
    with pytest.raises(ToolchainError, match=r"has a line break or bytes .*move what it names"):
        workshop.build()
