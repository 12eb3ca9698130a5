"""The steps to extend the library, done in a copy of it: a family, a knob, an argument.

docs/architecture.md ("To extend it") lists what is touched; these tests hold the lists.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

import pytest

import flashsmith
from flashsmith.configs import CONFIG_CLASSES, KernelConfig
from flashsmith.jit.headers import HeaderTree
from flashsmith.ops import operators
from flashsmith.runtime.call_args import CallArgs
from support.package_copy import INCLUDE, PACKAGE, copy, edit, run

__all__ = ["copy"]  # a fixture


# ---- a family ----

# A copy of a family differs from it in its names, and by a feature in every short form.
FAMILY_WORDS = {
    r"\bSm[89]0|\bFlash(?=\w+Kernel(Config|s)\b)": "Dummy",
    r"\b(?=(Forward|Backward|Decode)KernelArgs\b)": "Dummy",
    r"\b(?=(forward|backward|decode)_kernel_fn\b)": "dummy_",
    "flashsmith/flash_attention.cuh": "flashsmith/dummy/flash_attention.cuh",
    r"settings\.SM[89]0_SETS": 'settings.FamilySets("dummy-prog", "dummy-tune", "dummy")',
    r"\bSM[89]0_": "DUMMY_",
    r"sm[89]0(?!\.backward import BACKWARD)": "dummy",
    r"markers: (.*) = frozenset\(\)": r'markers: \1 = frozenset({"dummy"})',
    r"markers: (.*) = frozenset\(\{": r'markers: \1 = frozenset({"dummy", ',
    r"(feature_table: .* = \()": r'\1Feature("dummy"),',
    r"features import flag": "features import Feature, flag",
    r'^    "async\+': '    "dummy+async+',
}
HOST = "csrc/host/families"
# The headers that the host includes from all families also define these names.
OWN_NAMES = (
    r"^(?:struct|enum class|constexpr \w+) (\w+)(?: \{| = |\(int| :)",
    r"^constexpr .*, (k\w+) =",
)


def copy_family(copy: Path, name: str) -> None:
    """Adds the family ``dummy``, which is the family ``name`` under other names."""
    files = {f: f"configs/dummy/{f.name}" for f in (copy / f"configs/{name}").iterdir()}
    includes = [*(copy / INCLUDE / name).iterdir()]
    includes += [copy / INCLUDE / "flash_attention.cuh"] if name == "sm80" else []
    files |= {f: f"{INCLUDE}/dummy/{f.name}" for f in includes}
    files |= {f: f"{HOST}/{reworded(f.name)}" for f in (copy / HOST).glob(f"{name}_*")}
    own = own_names(includes)
    for source, target in files.items():
        if source.is_file():
            (copy / target).parent.mkdir(exist_ok=True)
            (copy / target).write_text(reworded(source.read_text(), own))


def list_family(copy: Path) -> None:
    """Adds the families of the architecture ``dummy`` to the list of families."""
    edit(
        copy / "configs/registry.py",
        {
            "\nFAMILIES:": "\nfrom flashsmith.configs.dummy.family import DUMMY_FAMILIES\n"
            "FAMILIES:",
            "(*SM80_FAMILIES, *SM90_FAMILIES)": "(*SM80_FAMILIES, *SM90_FAMILIES, *DUMMY_FAMILIES)",
        },
    )


CALL_THE_FAMILY = """
import torch
import flashsmith
from flashsmith.configs import DType, Workload, parse_kernel_name_into_config
from flashsmith.configs.kernel_id import KernelId
from flashsmith.configs.registry import BACKWARD, DECODE, FAMILIES, FORWARD, family_of
from flashsmith.configs.sets import get_kernel_configs
from flashsmith.configs.workload import BackwardWorkload, DecodeWorkload
from flashsmith.problem import Problem
from flashsmith.selection.choose import choose

GPU, CAPABILITY = {"sm80": ("NVIDIA A100", (8, 0)), "sm90": ("NVIDIA H200", (9, 0))}[NAME]
FP16 = DType.FP16
originals, dummies = ([f for f in FAMILIES if f.name == name] for name in (NAME, "dummy"))


def pairs(operation, workload):
    "The configurations of each family of an operation, and of its copy."
    for original, dummy in zip(originals, dummies, strict=True):
        if dummy in operation.families and workload.d_head in dummy.d_heads:
            yield original.heuristic(workload), dummy.heuristic(workload)


def same(call, pair):
    original, dummy = pair
    assert parse_kernel_name_into_config(str(dummy)) == dummy and "dummy" in str(dummy)
    assert f"dummy::" in KernelId(dummy).kernel_name()
    for a, b in zip(call(original), call(dummy), strict=True):
        # Sums of an order that differs from run to run differ in their last bits.
        close = dict(rtol=0, atol=0 if original.is_deterministic else 2e-3)
        torch.testing.assert_close(a, b, **close)


def tensors(n_q, n_k, heads=2):
    shapes = ((1, n_q, heads, 64), (1, n_k, 1, 64), (1, n_k, 1, 64))
    return [torch.randn(shape).half() for shape in shapes]


# The newest family serves there, whatever its name: few queries go to its decode.
problem = Problem(FP16, 128, 4, 32, 8, 16, 8192)
few = choose(Workload(problem), GPU).config
assert (few.family, few.operation) == ("dummy", "decode"), few
for operation in (FORWARD, BACKWARD, DECODE):
    assert operation.families_on(CAPABILITY)[0] in dummies
"""
FORWARD_OF_THE_FAMILY = """
workload = Workload.square(FP16, 64, 97)
(pair,) = pairs(FORWARD, workload)
assert family_of(pair[1]) is dummies[0]
sets = [get_kernel_configs(key) for key in ("dummy-prog", originals[0].sets.keys.progression)]
assert len(sets[0]) == len(sets[1])
q, k, v = tensors(70, 97)
same(lambda c: flashsmith.attention(q, k, v, config=c, return_lse=True), pair)
"""
BACKWARD_OF_THE_FAMILY = """
q, k, v = tensors(70, 97)
o, lse = flashsmith.attention(q, k, v, return_lse=True)
do = torch.randn_like(o)
found = list(pairs(BACKWARD, BackwardWorkload.square(FP16, 64, 97)))
assert len(found) == 2
for pair in found:
    same(lambda c: flashsmith.backward(c, do, q, k, v, o, lse)[:3], pair)
"""
DECODE_OF_THE_FAMILY = """
q, k, v = tensors(1, 300, 4)
kinds = ((False, False), (True, False)) if NAME == "sm80" else ((False, False),)
for kind in kinds:
    workload = DecodeWorkload(FP16, 64, 4, *kind, in_boxes=True)
    assert DECODE.candidates(workload, GPU)[-1].family in ("dummy", NAME, "sm80")
    (pair,) = pairs(DECODE, workload)
    keys, values = (t.to(torch.float8_e4m3fn) if kind[0] else t for t in (k, v))
    same(lambda c: [flashsmith.decode(c, q, keys, values, cache_seqlens=297)], pair)
"""
FP8_OF_THE_FAMILY = """
from flashsmith.configs.dummy.fp8_space import fp8_candidates as of_dummy
from flashsmith.configs.sm90.fp8_space import fp8_candidates as of_original
q, k, v = (t.to(torch.float8_e4m3fn) for t in tensors(70, 97))
pair = [rules(DType.BF16, 64, True)[-1] for rules in (of_original, of_dummy)]
out = torch.empty(q.shape, dtype=torch.bfloat16)
same(lambda c: [flashsmith.attention(q, k, v, config=c, out=out).clone()], pair)
"""
OPERATIONS = {
    "forward": FORWARD_OF_THE_FAMILY,
    "backward": BACKWARD_OF_THE_FAMILY,
    "decode": DECODE_OF_THE_FAMILY,
    "fp8": FP8_OF_THE_FAMILY,
}


def reworded(text: str, own: Sequence[str] = ()) -> str:
    for old, new in FAMILY_WORDS.items():
        text = re.sub(old, new, text, flags=re.MULTILINE)
    return re.sub(rf"\b({'|'.join(own)})\b", r"own_\1", text) if own else text


def own_names(headers: Iterable[Path]) -> list[str]:
    texts = [file.read_text() for file in headers if "arguments" in file.name]
    found = {
        name
        for pattern in OWN_NAMES
        for text in texts
        for name in re.findall(pattern, text, flags=re.MULTILINE)
    }
    return sorted(name for name in found if reworded(name) == name)


@pytest.mark.parametrize("name", ["sm80", "sm90"])
def test_an_architecture_with_all_operations_is_its_folders_and_two_lines(
    copy: Path, name: str
) -> None:
    copy_family(copy, name)
    list_family(copy)
    operations = [text for what, text in OPERATIONS.items() if name == "sm90" or what != "fp8"]
    run(copy, f"NAME = {name!r}\n" + CALL_THE_FAMILY + "".join(operations))


# ---- a knob ----

# This knob of the sm80 family makes the kernel scale O twice, so that its effect is visible.
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
    assert len(KNOB) + len(["docs/knobs.md"]) <= 4  # tools/docs/knobs.py writes it


# Other places must know these knobs, since the elements of a call's tensors depend on them.
KINDS_OF_TENSORS = {"fp8_cache", "per_token_scale", "fp8_values", "fp8_scores"}
# The feature stands in short forms that name no family, and in sm90's marker.
ALSO_NAMED = {"swizzled": {"configs/names.py", "configs/sm90/forward_legality.py"}}
KNOBS = {
    (kind, field.name)
    for kind in CONFIG_CLASSES
    for field in fields(kind)
    if field.name not in kind.tuple_fields
}
LIBRARY = [f for f in PACKAGE.rglob("*.py") if not {"lab", "cli"} & set(f.parts)]
CODE = {f: re.sub(r'"""(.|\n)*?"""|#.*', "", f.read_text()) for f in LIBRARY}


@pytest.mark.parametrize("name", sorted({name for _, name in KNOBS}))
def test_every_knob_is_named_in_its_families_and_nowhere_else(name: str) -> None:
    """A new knob is its field, the C++ field (test_cpp_structs holds them equal), the code that
    reads it, and the page of knobs."""
    own = [PACKAGE / f"configs/{each.family}" for each, other in KNOBS if other == name]
    naming = {f for f, code in CODE.items() if re.search(rf"\b{name}\b", code)}
    elsewhere = {str(f.relative_to(PACKAGE)) for f in naming if f.parent not in own}
    assert elsewhere <= ALSO_NAMED.get(name, set()) or name in KINDS_OF_TENSORS


# ---- an argument ----


def python_places(name: str) -> list[str]:
    """Returns the functions, other than checks, that have a parameter of this name, and the records
    that have such a field."""
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
    """Returns the functions of csrc/host that have a parameter of this name."""
    files = sorted((PACKAGE / "csrc/host").rglob("*.cpp"))
    pattern = re.compile(
        rf"^\S[^;{{}}]* (\w+)\([^;{{}}]*\b\w+ {name}\b[^;{{}}]*\)\s*\{{", re.MULTILINE
    )
    return [f"{f.name} {found}" for f in files for found in pattern.findall(f.read_text())]


SEMANTICS = "csrc/host/args/semantics.h"
KEYWORDS = set(inspect.signature(flashsmith.attention).parameters)
# A backward also returns gradients of these arguments.
DIFFERENTIABLE = {"sinks", "bias"}
# Arguments that decode also accepts pass only through its own modules.
OF_DECODE = {"decode.py decode", "decode_call.py DecodeOptions", "decode_call.py DecodeCall"}
# The forward copies keys that lie in pages, as many as the longest sequence has.
OF_PAGES = {"max_seqlen_k": {"kv_cache.py gathered"}}
OF_GRADIENTS = {
    *("gradients.py Gradients", "gradients.py GradientMask"),
    *("differentiable.py forward", "operators.py forward"),
}

# These are drawn for a call before they are arguments.
OF_DROPOUT = {"dropout_p", "rng_state"}
DRAWN = {"dropout.py dropout_keywords"}


@pytest.mark.parametrize("name", [name for name in CallArgs._fields if name in KEYWORDS])
def test_an_argument_is_three_places_in_python_and_none_in_functions_of_the_host(name: str) -> None:
    python = {"attention.py attention", "spec.py AttentionSpec", "call_args.py CallArgs"}
    python |= OF_GRADIENTS if name in DIFFERENTIABLE else set()
    python |= DRAWN if name in OF_DROPOUT else set()
    python |= OF_PAGES.get(name, set())
    assert {*python_places(name), *cxx_places(name)} - OF_DECODE == python
    assert name in {each.name for each in operators._SCHEMA.arguments}  # for torch.compile


def numbers_read() -> list[str]:
    text = (PACKAGE / "csrc/host/args/call.cpp").read_text()
    return re.findall(r'number<\w+>\("(\w+)", arguments\[', text)


def test_a_tensor_has_its_line_and_its_accessor_in_the_host_and_a_number_two_lines() -> None:
    text = (PACKAGE / SEMANTICS).read_text()
    accessors = (PACKAGE / "csrc/host/args/forward.h").read_text()
    numbers = text[text.index("struct Numbers") :]
    for name in CallArgs._fields:
        is_tensor = re.search(rf'\.name = "{name}["\[]', text)
        accessor = rf"View \*{name.removesuffix('s')}s?\(" if is_tensor else rf"\b{name} = .*;"
        assert re.search(accessor, accessors if is_tensor else numbers), name
        assert (name in numbers_read()) == (not is_tensor)


def test_numbers_are_read_in_their_order() -> None:
    read = numbers_read()
    assert read
    assert tuple(read) == CallArgs._fields[-len(read) :]


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
