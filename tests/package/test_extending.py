"""What it takes to extend the library, done in a copy of it: a family, a knob, an argument.

docs/architecture.md ("To extend it") lists what is touched; these tests hold the lists.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import flashsmith
from flashsmith.configs import CONFIG_CLASSES, KernelConfig
from flashsmith.jit.headers import HeaderTree
from flashsmith.ops import operators
from flashsmith.runtime.extras import Extras
from support.caches import kernel_free_cache

PACKAGE = Path(flashsmith.__file__).parent
INCLUDE = "csrc/include/flashsmith"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package, to be changed."""
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(PACKAGE, tmp_path / "src" / "flashsmith", ignore=ignored))


def run(copy: Path, program: str) -> str:
    """What a program prints that imports the copy and compiles into a cache of its own."""
    cache = kernel_free_cache(copy.parent.parent / "cache")
    environment = os.environ | {
        "PYTHONPATH": str(copy.parent),
        "FLASHSMITH_CACHE_DIR": str(cache.root),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def edit(file: Path, changes: Mapping[str, str]) -> None:
    text = file.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, (file, old)
        text = text.replace(old, new)
    file.write_text(text)


# ---- a family ----

# How the copy of the sm80 family differs from it.
FAMILY_WORDS = {
    "FlashForwardKernelConfig": "DummyForwardKernelConfig",
    r"(?<!Sm90)(?<!Static)\bForwardKernelArgs": "DummyForwardKernelArgs",
    r"\bforward_kernel_fn": "dummy_forward_kernel_fn",
    "flashsmith/flash_attention.cuh": "flashsmith/dummy/arguments.cuh",
    "SM80_FORWARD": "DUMMY_FORWARD",
    r"settings\.SM80_SETS": 'settings.FamilySets("dummy-prog", "dummy-tune", "dummy")',
    "sm80": "dummy",
    r"markers: (.*) = frozenset\(\)": r'markers: \1 = frozenset({"dummy"})',
    r'flag\("async", "async_copy"\),': 'Feature("dummy"), flag("async", "async_copy"),',
    r'^    "async\+': '    "dummy+async+',
}
FAMILY_FILES = {
    "configs/sm80": "configs/dummy",
    f"{INCLUDE}/sm80": f"{INCLUDE}/dummy",
    f"{INCLUDE}/flash_attention.cuh": f"{INCLUDE}/dummy/arguments.cuh",
    "csrc/host/families/sm80_forward.cpp": "csrc/host/families/dummy_forward.cpp",
}
USE_THE_FAMILY = """
import torch
import flashsmith
from flashsmith.configs import get_kernel_configs, parse_kernel_name_into_config
from flashsmith.configs.families import FAMILIES, family_of, families_on
from flashsmith.dtype import DType

sm80, _, dummy = FAMILIES
assert families_on((8, 0)) == (dummy, sm80)
assert len(get_kernel_configs("dummy-prog")) == len(get_kernel_configs("prog"))
q, k, v = (torch.randn(1, n, heads, 64).half() for n, heads in ((70, 2), (97, 1), (97, 1)))
config = dummy.rule(DType.FP16, 64, 97)
assert parse_kernel_name_into_config(str(config)) == config
assert family_of(config) is dummy
for causal in (False, True):
    o, lse = flashsmith.attention(q, k, v, config=config, causal=causal, return_lse=True)
    of_sm80 = flashsmith.attention(
        q, k, v, config=sm80.rule(DType.FP16, 64, 97), causal=causal, return_lse=True
    )
    assert torch.equal(o, of_sm80[0]) and torch.equal(lse, of_sm80[1])
print(flashsmith.configs.KernelId(config).kernel_name())
"""


def reworded(text: str) -> str:
    for old, new in FAMILY_WORDS.items():
        text = re.sub(old, new, text, flags=re.MULTILINE)
    return text


def test_a_family_is_its_folders_and_a_line_of_the_list(copy: Path) -> None:
    for source, target in FAMILY_FILES.items():
        files = [copy / source] if (copy / source).is_file() else (copy / source).iterdir()
        for file in files:
            to = copy / target if (copy / source).is_file() else copy / target / file.name
            to.parent.mkdir(exist_ok=True)
            to.write_text(reworded(file.read_text()))
    edit(
        copy / "configs/families.py",
        {
            "\nFAMILIES = (SM80_FORWARD, SM90_FORWARD)": "\nfrom flashsmith.configs.dummy.family "
            "import DUMMY_FORWARD\nFAMILIES = (SM80_FORWARD, SM90_FORWARD, DUMMY_FORWARD)"
        },
    )
    assert "dummy::flash_forward_kernel" in run(copy, USE_THE_FAMILY)


# ---- a knob ----

# A knob of the sm80 family that has the kernel scale O twice over, so that its effect is seen.
KNOB = {
    "configs/sm80/forward.py": {
        "    optimized_softmax: bool\n": "    optimized_softmax: bool\n    twice: bool = False\n",
        '        flag("opt_softmax", "optimized_softmax"),\n': (
            '        flag("opt_softmax", "optimized_softmax"),\n        flag("twice", "twice"),\n'
        ),
        "\n    Raises:\n        TypeError: a field has the wrong type": (
            "    twice: O is twice what it should be.\n"
            "\n    Raises:\n        TypeError: a field has the wrong type"
        ),
    },
    f"{INCLUDE}/flash_attention.cuh": {
        "  bool optimized_softmax;\n": "  bool optimized_softmax;\n  bool twice = false;\n",
    },
    f"{INCLUDE}/sm80/epilogue.cuh": {
        "    store_O_to_tile<Traits>(O[m], factor,": (
            "    if constexpr (Traits::config.twice) factor[0] *= 2, factor[1] *= 2;\n"
            "    store_O_to_tile<Traits>(O[m], factor,"
        ),
    },
}
USE_THE_KNOB = """
import torch
import flashsmith
from flashsmith.configs import parse_kernel_name_into_config

name = "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles+opt_softmax"
plain, twice = (parse_kernel_name_into_config(name + knob) for knob in ("", "+twice"))
assert str(twice) == name + "+twice" and not plain.twice
q, k, v = (torch.randn(1, 64, 1, 64).half() for _ in range(3))
o = flashsmith.forward(plain, q, k, v)
# To the last bit, but for the smallest numbers.
torch.testing.assert_close(flashsmith.forward(twice, q, k, v), 2 * o, rtol=0, atol=2**-23)
"""


def test_a_knob_is_four_files(copy: Path) -> None:
    for file, changes in KNOB.items():
        edit(copy / file, changes)
    run(copy, USE_THE_KNOB)
    assert len(KNOB) + len(["docs/knobs.md"]) <= 4  # which tools/docs/knobs.py writes


# ---- an argument ----


def python_places(name: str) -> list[str]:
    """The functions that have a parameter of this name, but for checks, and the records that have a
    field of it."""
    found = []
    for file in (*sorted((PACKAGE / "ops").glob("*.py")), *(PACKAGE / "runtime").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            given: list[str] = []
            if isinstance(node, ast.FunctionDef) and not node.name.startswith(("check", "_check")):
                given = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
            if isinstance(node, ast.ClassDef):
                fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                given = [each.target.id for each in fields if isinstance(each.target, ast.Name)]
            if name in given:
                found.append(f"{file.name} {node.name}")  # type: ignore[attr-defined]
    return found


def cxx_places(name: str) -> list[str]:
    """The functions of csrc/host that have a parameter of this name."""
    files = sorted((PACKAGE / "csrc/host").rglob("*.cpp"))
    pattern = re.compile(
        rf"^\S[^;{{}}]* (\w+)\([^;{{}}]*\b\w+ {name}\b[^;{{}}]*\)\s*\{{", re.MULTILINE
    )
    return [f"{f.name} {found}" for f in files for found in pattern.findall(f.read_text())]


SEMANTICS = "csrc/host/args/semantics.h"
KEYWORDS = set(inspect.signature(flashsmith.attention).parameters)
# Whose gradients a backward tells, beside those that every argument has.
DIFFERENTIABLE = {"sinks", "bias"}
# What decode takes as well passes through its own modules alone.
OF_DECODE = {"decode.py decode", "decode_calls.py Asked", "decode_calls.py Call"}
OF_GRADIENTS = {"backward.py Gradients", "backward.py Wanted", "differentiable.py forward"}

# What is drawn for a call before it is anything's argument.
OF_DROPOUT = {"dropout_p", "rng_state"}
DRAWN = {"dropout.py dropout_keywords"}


@pytest.mark.parametrize("name", [name for name in Extras._fields if name in KEYWORDS])
def test_an_argument_is_three_places_in_python_and_none_in_functions_of_the_host(name: str) -> None:
    python = {"attention.py attention", "semantics.py Semantics", "extras.py Extras"}
    python |= OF_GRADIENTS if name in DIFFERENTIABLE else set()
    python |= DRAWN if name in OF_DROPOUT else set()
    assert {*python_places(name), *cxx_places(name)} - OF_DECODE == python
    assert name in {each.name for each in operators._SCHEMA.arguments}  # to torch.compile


def numbers_read() -> list[str]:
    text = (PACKAGE / "csrc/host/args/call.cpp").read_text()
    return re.findall(r'number<\w+>\("(\w+)", arguments\[', text)


def test_a_tensor_has_its_line_and_its_accessor_in_the_host_and_a_number_two_lines() -> None:
    text = (PACKAGE / SEMANTICS).read_text()
    accessors = (PACKAGE / "csrc/host/args/forward.h").read_text()
    numbers = text[text.index("struct Numbers") :]
    for name in Extras._fields:
        is_tensor = re.search(rf'\.name = "{name}["\[]', text)
        accessor = rf"View \*{name.removesuffix('s')}s?\(" if is_tensor else rf"\b{name} = .*;"
        assert re.search(accessor, accessors if is_tensor else numbers), name
        assert (name in numbers_read()) == (not is_tensor)


def test_numbers_are_read_in_their_order() -> None:
    read = numbers_read()
    assert read
    assert tuple(read) == Extras._fields[-len(read) :]


# ---- a variant, and what families share ----


def headers(folder: str) -> list[Path]:
    return sorted((PACKAGE / INCLUDE / folder).glob("*.cuh"))


def test_the_variant_is_named_in_traits_alone() -> None:
    everywhere = (PACKAGE / INCLUDE).rglob("*.cuh")
    named = {f for f in everywhere if re.search(r"\bVARIANT\b", f.read_text())}
    assert named == {PACKAGE / INCLUDE / traits_of(kind) for kind in CONFIG_CLASSES}


def traits_of(kind: type[KernelConfig]) -> str:
    kernels = "" if kind.operation == "forward" else f"{kind.kernels_name()}_"
    return f"{kind.family}/{kernels}traits.cuh"


def test_what_families_share_knows_no_family() -> None:
    for file in headers("attention"):
        for kind in CONFIG_CLASSES:
            words = (kind.family, kind.__name__, kind.kernel_arguments)
            found = [w for w in words if re.search(rf"\b{w}\b", file.read_text())]
            assert not found, (file.name, found)


def test_shared_headers_serve_every_forward_and_some_backward() -> None:
    include = PACKAGE / "csrc/include"
    shared = {f"flashsmith/attention/{file.name}" for file in headers("attention")}
    of_forward, of_others = [], set()
    for kind in CONFIG_CLASSES:
        first = f"flashsmith/{kind.family}/{kind.kernels_name()}_kernel.cuh"
        found = (
            HeaderTree(include).included({"kernel.cu": f'#include "{first}"\n'}, [include]).found
        )
        used = shared & {header.name for header in found}
        if kind.operation == "forward":
            of_forward.append(used)
        else:
            of_others |= used
    assert all(used == of_forward[0] for used in of_forward)
    assert of_forward[0] | of_others == shared
