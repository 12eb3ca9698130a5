"""The documentation builds, stands alone, and describes the package as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from typer.main import get_command

import flashsmith
from flashsmith import configs, flash_attn, jit, reference, runtime, settings
from flashsmith.cli import app
from flashsmith.configs import (
    FlashForwardKernelConfig,
    get_kernel_configs,
    get_kernel_progression_configs,
    parse_kernel_name_into_config,
    require_buildable,
)
from flashsmith.errors import FlashsmithError
from flashsmith.flash_attn import fa3
from flashsmith.jit import find_cuda_toolkit, toolchain
from support.paths import ROOT

DOCS = ROOT / "docs"
CONFIG = get_kernel_progression_configs()[1]
pytest.importorskip("mkdocs", reason="pip install 'flashsmith[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the site as `make docs` does; a broken link or anchor fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    return folder


class Loads(HTMLParser):
    """Finds what a page loads by itself."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag in ("script", "img", "iframe"):
            self.addresses.append(found.get("src") or "")
        if tag == "link" and found.get("rel") not in ("canonical", "next", "prev"):
            self.addresses.append(found.get("href") or "")


def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) >= 13
    for page in pages:
        loaded = Loads(page.read_text()).addresses
        assert loaded
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text()), sheet


def test_search_works_for_pages_that_are_opened_from_disk(site: Path) -> None:
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = {")
    worker = "assets/iframe-worker.js"  # replaces a Worker, which browsers refuse there
    assert worker in Loads((site / "index.html").read_text()).addresses
    assert "window.Worker" in (site / worker).read_text()


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    text = "".join(page.read_text() for page in (site / "reference").glob("api*.html"))
    modules = (flashsmith, configs, flash_attn, fa3, jit, runtime, reference)
    names = [f"{module.__name__}.{name}" for module in modules for name in module.__all__]
    names += [f"flashsmith.errors.{kind.__name__}" for kind in all_errors(FlashsmithError)]
    modules_of_package = {f"flashsmith.{name}" for name in flashsmith._SUBMODULES}
    shown = [name for name in names if name not in {*modules_of_package, "flashsmith.__version__"}]
    assert len(shown) > 120
    hidden = {f"{name}.{name.rpartition('.')[2]}": name for name in shown}  # files of that name
    found = set(re.findall(r'id="([\w.]+)"', text))
    found |= {hidden[name] for name in found & hidden.keys()}
    assert set(shown) - found == set()


def all_errors(kind: type[FlashsmithError]) -> list[type[FlashsmithError]]:
    kinds = [each for sub in kind.__subclasses__() for each in all_errors(sub)]
    return [kind, *(each for each in kinds if each.__module__ == kind.__module__)]


def text_of(page: Path) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", "", page.read_text())).split())


def test_every_command_and_option_is_there(site: Path) -> None:
    text = text_of(site / "reference" / "cli.html")

    def check(name: str, command: Any) -> int:
        assert name in text
        shown = (each for each in command.params if not getattr(each, "hidden", False))
        names = [each for parameter in shown for each in parameter.opts]
        options = [each for each in names if each.startswith("--")]
        assert [each for each in options if each not in text] == []
        children = getattr(command, "commands", {})
        return len(options) + sum(check(f"{name} {each}", children[each]) for each in children)

    assert check("flashsmith", get_command(app)) > 50
    for help_of in (each.help for each in get_command(app).commands.values()):  # type: ignore[attr-defined]
        assert " ".join(help_of.split("\n\n")[0].split()) in text


def test_every_environment_variable_is_there(site: Path) -> None:
    text = text_of(site / "reference" / "environment.html")
    for setting in settings.ALL:
        for word in (setting.name, setting.kind, setting.default):
            assert " ".join(word.split()) in text
        assert setting.meaning.replace("`", "") in text


def half(**changes: Any) -> dict[str, torch.Tensor]:
    tensors = {name: torch.zeros(1, 64, 1, 128, dtype=torch.float16) for name in "qkv"}
    return tensors | changes


def short_form(features: str, tup: str = "(FP16, 128, 64, 64, 4)") -> FlashForwardKernelConfig:
    return parse_kernel_name_into_config(f"{tup}: {features}")


def bad_stride() -> torch.Tensor:
    return torch.zeros(1, 64, 1, 256, dtype=torch.float16)[..., ::2]


def bad_row_stride() -> torch.Tensor:
    return torch.zeros(1, 64, 1, 132, dtype=torch.float16)[..., :128]


def freed() -> torch.Tensor:
    k = half()["k"]
    k.untyped_storage().resize_(0)
    return k


def jvp(function: Callable[[torch.Tensor], Any]) -> Any:
    """Calls a function on a tensor with a tangent, outside of torch.func."""
    with forward_ad.dual_level():
        k = half()["k"]
        return function(forward_ad.make_dual(k, k))


def attention(**changes: Any) -> Any:
    return flashsmith.forward(CONFIG, **half(**changes))


def under_autocast(q: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return flashsmith.attention(q, q, q)


def packed(*places: int, **maximum: int) -> Any:
    q = torch.zeros(64, 1, 128, dtype=torch.float16)
    begins = torch.tensor(places, dtype=torch.int32)
    return flashsmith.attention(q, q, q, cu_seqlens_q=begins, cu_seqlens_k=begins, **maximum)


# The heading in the page -> the calls that lead there, one for each message it quotes.
TRIGGERS: dict[str, list[Callable[[], object]]] = {
    "No nvcc, or too old": [find_cuda_toolkit],
    "The dtypes do not match": [
        lambda: attention(k=torch.zeros(1, 64, 1, 128, dtype=torch.bfloat16)),
        lambda: attention(**{n: torch.zeros(1, 64, 1, 128).bfloat16() for n in "qkv"}),
        lambda: under_autocast(torch.zeros(1, 64, 1, 128)),
    ],
    "The shapes do not fit together": [
        lambda: attention(v=torch.zeros(1, 32, 1, 128, dtype=torch.float16)),
        lambda: attention(**{n: torch.zeros(1, 64, 3, 128).half() for n in "kv"}),
        lambda: attention(**{n: torch.zeros(1, 64, 1, 84).half() for n in "qkv"}),
    ],
    "The lengths of sequences do not fit": [
        lambda: packed(0, 40, 30),
        lambda: packed(0, 40, 65),
        lambda: packed(0, 40, 64, max_seqlen_q=39),
    ],
    "Strides or alignment are wrong": [
        lambda: attention(q=bad_stride()),
        lambda: attention(q=bad_row_stride()),
    ],
    "Tensors that are not memory": [
        lambda: attention(k=half()["k"].to_sparse()),
        lambda: torch.vmap(lambda k: attention(k=k))(half()["k"][None]),
        lambda: jvp(lambda k: attention(k=k)),
        lambda: attention(k=freed()),
        lambda: attention(k=FakeTensorMode().from_tensor(half()["k"])),
    ],
    "A name cannot be parsed": [lambda: short_form("async")],
    "KERNELS is not known": [lambda: get_kernel_configs("fast")],
    "A configuration cannot be built": [
        lambda: require_buildable(short_form("async+load_3_2_2_tiles"))
    ],
    "A configuration is not built": [
        lambda: flashsmith.forward(short_form("load_0_0_4_tiles+buffer"), **half())
    ],
    "A gradient is required": [lambda: attention(alibi_slopes=torch.zeros(1, requires_grad=True))],
}
# These need hardware or a broken machine, so the text is looked for in the source.
ELSEWHERE = {
    "flashsmith is not found": "../../tools/_environment.py",
    "The GPU is older than compute capability 8.0": "lab/commands/device.py",
    "The kernel cache cannot be used": "jit/cache.py",
    "There is no space, no open file or no memory left": "jit/disk.py",
    "The wheel is for another platform": "jit/host.py",
    "A kernel or the host library cannot be loaded": "runtime/kernels.py",
    "A kernel spills registers": "jit/refusal.py",
    "A kernel lets shared memory be overwritten before it has read it": "jit/lint.py",
    "Machine code was not linted": "cli/build.py",
    "A header changed during a build": "jit/compile.py",
    "ncu was not found": "lab/bench/ncu.py",
    "ncu may not read the counters": "lab/bench/ncu.py",
    "The tuned table is not used": "selection/tables.py",
}


def quoted_messages() -> dict[str, list[str]]:
    """Returns heading -> the messages in the line below it."""
    text = (DOCS / "troubleshooting.md").read_text()
    entries = re.findall(r"^### (.+)\n\n(`.*`)$", text, re.MULTILINE)
    return {heading: re.findall(r"`([^`]+)`", line) for heading, line in entries}


def test_every_message_has_its_test() -> None:
    assert quoted_messages().keys() == TRIGGERS.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("heading", TRIGGERS)
def test_message_is_what_is_raised(heading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if heading == "A configuration is not built":
        monkeypatch.setenv(settings.BUILD.name, "0")
    if heading == "No nvcc, or too old":
        monkeypatch.setattr(toolchain, "_nvcc_candidates", lambda: iter(()))
    messages = quoted_messages()[heading]
    for message, trigger in zip(messages, TRIGGERS[heading], strict=True):
        with pytest.raises((ValueError, TypeError, NotImplementedError, FlashsmithError)) as raised:
            trigger()
        assert message in str(raised.value)


@pytest.mark.parametrize("heading", ELSEWHERE)
def test_message_is_in_the_source(heading: str) -> None:
    source = (ROOT / "src" / "flashsmith" / ELSEWHERE[heading]).read_text()
    for message in quoted_messages()[heading]:
        assert message in source


# Each row stands for a row of the trouble sections of the design documents, by the words that its
# entry must use.
@pytest.mark.parametrize(
    "words",
    [
        ("compute capability 8.0", "sm_80"),  # GPU too old
        ("dtype", "FP16", "BF16"),  # dtypes differ
        ("B_r", "B_c", "sequence length"),  # blocks do not divide the length
        ("is not built for", "flash_kernels.cuh", "generate_kernel_instantiations.py"),
        ("short form", "configs --built"),  # compare short forms
        ("get_kernels_to_build",),  # print the set
        ("run_kernels.py", "--kernels"),  # run one configuration
        ("operator<=>", "order"),  # keys that collide
        ("Strides", "contiguous"),  # layout and strides
        ("static_assert", "power of two"),  # compile-time assertions
        ("KERNELS", "prog", "progall", "tune", "64,32"),  # unknown key
        ("cannot be parsed", "Three forms"),  # names
        ("spills", "should_autotune_config"),  # too many registers
        ("ncu was not found", "Install Nsight Compute"),  # no ncu
        ("--ref", "--ref_v3"),  # is the result right
    ],
)
def test_every_trouble_has_an_entry(words: tuple[str, ...]) -> None:
    text = (DOCS / "troubleshooting.md").read_text()
    entries = re.split(r"^##+ ", text, flags=re.MULTILINE)
    assert any(all(word in entry for word in words) for entry in entries)


def test_every_script_has_its_line() -> None:
    text = (DOCS / "quick-start.md").read_text()
    folders = (ROOT / "tools" / name for name in ("benchmark", "build"))
    scripts = {
        file.relative_to(ROOT).as_posix() for each in folders for file in each.glob("[!_]*.*")
    }
    assert scripts == set(re.findall(r"^\| `(tools/[\w./]+)", text, re.MULTILINE))


def test_the_first_example_of_readme_prints_what_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The example stands in the first 25 of at most 120 lines."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    found = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", "\n".join(lines[:25]), re.DOTALL)
    assert found is not None
    code, printed = found.groups()
    exec(code, {})
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("page", ["quick-start", "report", "tuning", "config-to-kernel", "knobs"])
def test_command_lines_exist(page: str) -> None:
    """Checks that every `flashsmith` line in a page names a command and options that exist."""
    commands = get_command(app).commands  # type: ignore[attr-defined]
    lines = re.findall(
        r"^(?:\w+=\S+ )?flashsmith (\w+)([^#\n]*)", (DOCS / f"{page}.md").read_text(), re.MULTILINE
    )
    assert lines or page == "knobs"
    for name, rest in lines:
        known = {each for parameter in commands[name].params for each in parameter.opts}
        used = re.findall(r"(?<=\s)--?[a-z][\w-]*", rest)
        assert set(used) <= known | {"--help"}, (name, rest)
