"""A bare import, and the configurations, need only the standard library and load fast."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import flashsmith
from support.paths import ROOT

SRC = ROOT / "src"

# The finder refuses every module that is neither flashsmith nor in the standard library.
_STDLIB_ONLY = """
import sys, time

class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top != "flashsmith" and top not in sys.stdlib_module_names:
            raise ImportError(f"third-party import of {name}")
        return None

sys.meta_path.insert(0, Refuse())
sys.path.insert(0, SRC)
start = time.perf_counter()
STATEMENTS
seconds = time.perf_counter() - start
known = sys.stdlib_module_names | {"flashsmith", "__main__"}
foreign = sorted({name.partition(".")[0] for name in sys.modules} - known)
assert not foreign, foreign
print(seconds)
"""


def _seconds_to_run(statements: str) -> float:
    """Runs Python with -S and -E: no site-packages and no environment, so that nothing is
    preloaded."""
    code = _STDLIB_ONLY.replace("SRC", repr(str(SRC))).replace("STATEMENTS", statements)
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.parametrize(
    "statements",
    [
        "import flashsmith",
        "import flashsmith.configs, flashsmith.codegen, flashsmith.settings",
        "import flashsmith; flashsmith.FlashForwardKernelConfig; flashsmith.DType.FP16",
        "import flashsmith; assert len(flashsmith.configs.get_kernels_to_build()) == 85",
    ],
)
def test_stdlib_is_enough_and_it_is_fast(statements: str) -> None:
    # The best of three counts, since another process may hold the processor once.
    assert min(_seconds_to_run(statements) for _ in range(3)) < 0.5


def test_a_bare_import_loads_no_subpackage() -> None:
    _seconds_to_run(
        "import flashsmith\n"
        "found = {name for name in sys.modules if name.startswith('flashsmith.')}\n"
        "assert found == {'flashsmith.importing', 'flashsmith.version'}"
    )


def test_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'flashsmith' has no attribute 'fordward'"):
        _ = flashsmith.fordward
    assert not hasattr(flashsmith, "__wrapped__")


def test_dir_lists_what_is_public() -> None:
    assert {"attention", "forward", "configs", "__version__"} <= set(dir(flashsmith))


def test_version_is_that_of_the_project() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version
    assert flashsmith.__version__ == version[1]


@pytest.mark.parametrize(
    "first",
    [
        "import flashsmith",
        "import flashsmith.ops.forward",
        "from flashsmith.ops.attention import attention",
    ],
)
def test_attention_and_forward_are_callable_however_they_were_imported(first: str) -> None:
    pytest.importorskip("torch")
    code = f"{first}\nimport flashsmith\nassert callable(flashsmith.attention)\n"
    code += "assert callable(flashsmith.forward)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("slow", ["torch._dynamo", "torch.utils.flop_counter"])
def test_attention_does_not_import(slow: str) -> None:
    """Importing dynamo takes longer than the first call, and the FLOP counter imports Triton."""
    pytest.importorskip("torch")
    code = "import sys, flashsmith\nflashsmith.attention, flashsmith.decode\n"
    code += f"assert not [name for name in sys.modules if name.startswith({slow!r})]"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "statement",
    [
        "flashsmith.attention",
        "flashsmith.ops",
        "from flashsmith import decode",
        "flashsmith.install_as_flash_attn()",
        "from flashsmith.flash_attn import flash_attn_func",
        "from flashsmith.integrations import sdpa",
        "from flashsmith.integrations.torch_sdpa import register",
    ],
)
def test_a_missing_torch_is_named_with_what_installs_it(statement: str) -> None:
    code = f"import sys; sys.modules['torch'] = None\nimport flashsmith\n{statement}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    *before, last = done.stderr.splitlines()
    sentence = "torch is not installed; `pip install 'flashsmith[torch]'`"
    assert last == f"ModuleNotFoundError: {sentence}"
    assert not any("During handling" in line or "direct cause" in line for line in before)
    assert len(before) < 14  # no stack of imports


def test_another_missing_module_keeps_its_own_error() -> None:
    code = "import sys; sys.modules['flashsmith.ops.decode'] = None\nimport flashsmith\n"
    code += "flashsmith.decode"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ModuleNotFoundError: import of flashsmith.ops.decode halted" in done.stderr
