"""Programs that import flash_attn run unchanged, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashsmith.flash_attn import install
from support.paths import ROOT, TESTS

INSTALL = "import flashsmith\nflashsmith.install_as_flash_attn()\n"
BY_REFERENCE = (
    "import pytest\n"
    "from support.attention import attention_by_reference, replace_attention\n"
    "replace_attention(pytest.MonkeyPatch(), attention_by_reference)\n"
)


def run(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / "src"), str(TESTS), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip


def output_of(program: str) -> str:
    done = run("-c", program)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_flash_attn_finds_flashsmith() -> None:
    program = (
        "import flash_attn, flash_attn.flash_attn_interface\n"
        "from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache\n"
        "from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input\n"
        "from flash_attn.flash_attn_interface import _flash_attn_forward\n"
        "from flash_attn.flash_attn_interface import flash_attn_varlen_kvpacked_func\n"
        "import importlib.metadata as metadata, importlib.util, flashsmith.flash_attn\n"
        "assert flash_attn_func is flashsmith.flash_attn.flash_attn_func\n"
        "assert importlib.util.find_spec('flash_attn') is not None\n"
        "assert flash_attn.__version__ == '2.8.4'\n"
        "for name in ('flash-attn', 'flash_attn', 'Flash.Attn'):\n"
        "    assert metadata.version(name) == '2.8.4'\n"
        "assert metadata.packages_distributions()['flash_attn'] == ['flash-attn']\n"
        "assert metadata.version('flashsmith')\n"
    )
    output_of(INSTALL + INSTALL + program)


def test_rotary_embeddings_and_flash_attention_3_are_found() -> None:
    program = (
        "import flash_attn.layers.rotary as rotary, flash_attn_interface\n"
        "from flash_attn.ops.triton.rotary import apply_rotary\n"
        "from flash_attn.layers.rotary import apply_rotary_emb\n"
        "import flashsmith.flash_attn.fa3 as fa3, flashsmith.flash_attn.layers.rotary as own\n"
        "assert rotary is own and rotary.apply_rotary_emb is apply_rotary_emb\n"
        "assert flash_attn_interface is fa3\n"
    )
    output_of(INSTALL + program)


def test_a_flash_attention_3_that_is_installed_stays(tmp_path: Path) -> None:
    (tmp_path / "flash_attn_interface.py").write_text("OWN = True\n")
    program = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n" + INSTALL
    output_of(program + "import flash_attn_interface\nassert flash_attn_interface.OWN")


@pytest.mark.parametrize("module", ["losses", "cute", "kvcache", "layers.patch_embed"])
def test_other_modules_are_refused_with_what_there_is(module: str) -> None:
    done = run("-c", INSTALL + f"import flash_attn.{module}")
    assert done.stderr.splitlines()[-1].startswith(
        f"ModuleNotFoundError: no module flash_attn.{module}: flash_attn is flashsmith's here "
        "(install_as_flash_attn), which has flash_attn, flash_attn.flash_attn_interface"
    ), done.stderr


def test_without_it_there_is_none() -> None:
    done = run("-c", "import flashsmith.flash_attn, flash_attn")
    assert "ModuleNotFoundError: No module named 'flash_attn'" in done.stderr


def test_other_distributions_are_found_as_before() -> None:
    finder = install._Finder()
    context = install.importlib.metadata.DistributionFinder.Context
    assert not list(finder.find_distributions(context(name="flash-attn-3")))
    (found,) = finder.find_distributions(context())
    assert found.metadata["Name"] == "flash-attn" and found.version == "2.8.4"
    assert finder.find_spec("flash_attn") is None


def test_a_flash_attn_that_is_there_already_stays(tmp_path: Path) -> None:
    (tmp_path / "flash_attn.py").write_text("")
    program = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport flash_attn\n" + INSTALL
    done = run("-c", program)
    assert "FlashsmithError: flash_attn has been imported already, from" in done.stderr
    assert "flash_attn.py; call flashsmith.install_as_flash_attn() before" in done.stderr


def test_programs_run_with_their_arguments(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("NAME = 'helper'\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, helper\nfrom flash_attn import flash_attn_func\n"
        "print(__name__, flash_attn_func.__module__, sys.argv[1:], helper.NAME)\n"
    )
    done = run("-m", "flashsmith.flash_attn", str(program), "-x", "1")
    assert done.stdout == (
        "__main__ flashsmith.flash_attn.flash_attn_interface ['-x', '1'] helper\n"
    ), done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((), "usage: python -m flashsmith.flash_attn program.py"), (("no.py",), "there is no file")],
)
def test_without_a_program_it_says_so(arguments: tuple[str, ...], words: str) -> None:
    done = run("-m", "flashsmith.flash_attn", *arguments)
    assert done.returncode == 1 and words in done.stderr


def test_transformers_takes_it_for_flash_attention_2() -> None:
    """transformers believes that CUDA is there, and its models then compute with flashsmith."""
    pytest.importorskip("transformers", reason="pip install 'flashsmith[transformers]'")
    program = (
        "import torch\n"
        "from transformers.utils import is_flash_attn_2_available, import_utils\n"
        "import_utils.is_torch_cuda_available = lambda: True\n"
        "assert is_flash_attn_2_available()\n"
        "from support.models import tiny_model\n"
        "torch.set_grad_enabled(False)\n"
        "model = tiny_model('llama').to(torch.bfloat16)\n"
        "ids = torch.randint(3, 60, (2, 9))\n"
        "mask = torch.tensor([[1] * 9, [0] * 4 + [1] * 5])\n"
        "def hidden():\n"
        "    return model(ids, attention_mask=mask).last_hidden_state.float() * mask[..., None]\n"
        "expected = hidden()\n"
        "model.config._attn_implementation = 'flash_attention_2'\n"
        "difference = (hidden() - expected).abs().max()\n"
        "assert 0 < difference < 0.2, difference\n"
        "from transformers import modeling_flash_attention_utils as used\n"
        "print(used._flash_varlen_fn.__module__)\n"
    )
    found = output_of(INSTALL + BY_REFERENCE + program)
    assert found == "flashsmith.flash_attn.flash_attn_interface\n"


def test_installing_after_transformers_warns() -> None:
    pytest.importorskip("transformers", reason="pip install 'flashsmith[transformers]'")
    done = run("-W", "error", "-c", "import transformers\n" + INSTALL)
    assert "UserWarning: transformers was imported before" in done.stderr
