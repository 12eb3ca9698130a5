"""examples/*.py as their docstrings say to run them on a CPU, and what they notice."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import flashsmith
from support.paths import ROOT
from support.scripts import load_script

SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
# These have tests of their own in tests/integrations.
ELSEWHERE = {"context_parallel", "paged_generation"}
HERE = [path.stem for path in SCRIPTS if path.stem not in ELSEWHERE]
PAGES = {path: path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))}


def script(name: str) -> ModuleType:
    if name == "llama_transformers":
        pytest.importorskip("transformers", reason="pip install 'flashsmith[transformers]'")
    return load_script(f"examples/{name}.py")


def commands(text: str, name: str) -> list[list[str]]:
    """Returns the arguments of each command that runs a script, without its comment."""
    lines = re.findall(rf"^ *python examples/{name}\.py\b(.*)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def cpu_command(module: ModuleType, name: str) -> list[str]:
    """Returns the command of the docstring that needs no GPU."""
    assert module.__doc__
    found = commands(module.__doc__, name)
    (command,) = (each for each in found if {"cpu", "--gpu"} & {*each})
    return command


def status_of(module: ModuleType, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Returns the exit status of a script."""
    monkeypatch.setattr(sys, "argv", ["script", *arguments])
    try:
        module.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize("name", HERE)
def test_a_script_runs_on_a_cpu_as_its_docstring_says(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script(name)
    status = status_of(module, cpu_command(module, name), monkeypatch)
    assert (status, bool(capsys.readouterr().out)) == (0, True)


@pytest.mark.parametrize("name", HERE)
def test_every_command_is_one_that_the_script_takes(name: str) -> None:
    """Commands on pages count, too, and one of them is the CPU command of the docstring."""
    module = script(name)
    on_pages = [each for text in PAGES.values() for each in commands(text, name)]
    assert cpu_command(module, name) in on_pages
    for command in (*commands(module.__doc__ or "", name), *on_pages):
        module.parse(command)


def test_every_script_is_on_a_page() -> None:
    text = "".join(PAGES.values())
    assert [path.name for path in SCRIPTS if f"examples/{path.name}" not in text] == []
    named = set(re.findall(r"examples/([\w.]+\.(?:py|ipynb))", text))
    assert [name for name in named if not (ROOT / "examples" / name).is_file()] == []


def spoil(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Has a function of flashsmith give results that are a tenth too large."""
    right = getattr(flashsmith, name)
    monkeypatch.setattr(flashsmith, name, lambda *args, **keywords: right(*args, **keywords) * 1.1)


@pytest.mark.parametrize(
    ("name", "function"), [("paged_decode", "decode"), ("score_functions", "attention")]
)
def test_a_wrong_result_is_noticed(
    name: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script(name)
    spoil(monkeypatch, function)
    assert status_of(module, cpu_command(module, name), monkeypatch) == 1


def test_a_wrong_layer_of_transformers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("llama_transformers")
    right = module.logits_of

    def spoiled(model: Any, implementation: str, texts: dict[str, torch.Tensor]) -> torch.Tensor:
        found = right(model, implementation, texts)
        return found if implementation == "eager" else found * 1.1

    monkeypatch.setattr(module, "logits_of", spoiled)
    assert status_of(module, cpu_command(module, "llama_transformers"), monkeypatch) == 1


def test_training_has_the_losses_of_plain_products(monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("gpt_training")
    options = module.parse([*cpu_command(module, "gpt_training"), "--heads=2", "--steps=6"])
    losses, expected = (module.train(options, attend) for attend in (module.flash, module.plain))
    assert losses == pytest.approx(expected, abs=2e-3)
    assert losses[-1] < losses[0]
    spoil(monkeypatch, "attention")
    assert module.train(options, module.flash) != pytest.approx(expected, abs=2e-3)


def test_pages_go_from_request_to_request() -> None:
    """More requests join than there are slots, and no page is lost."""
    module = script("paged_decode")
    loop = module.Loop(module.parse(cpu_command(module, "paged_decode")))
    n_pages = len(loop.cache.free)
    for _ in range(loop.options.steps):
        loop.step()
    assert loop.joined > len(loop.requests)
    held = [page for pages in loop.cache.pages for page in pages]
    assert sorted(held + loop.cache.free) == list(range(n_pages))


def test_tuning_is_asked_for_the_shapes_that_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("which_kernel")
    ran: list[list[str]] = []
    monkeypatch.setattr(module.subprocess, "run", lambda command, **_: ran.append([*command]))
    options = module.parse(["--tune", "--lengths=1024"])
    module.tune(options)
    assert ran == [[*module.FLASHSMITH, "tune", *module.shapes(options)]]
    with pytest.raises(SystemExit):
        module.parse(["--tune", "--gpu=h200"])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_says_what_it_is_for(path: Path) -> None:
    text = path.read_text()
    assert re.match(r'"""[A-Z]\w+s [^"]+"""', text), "it begins with a verb"
