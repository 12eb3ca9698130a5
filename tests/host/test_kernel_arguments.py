"""Kernel arguments have one layout: in the host, for which FLASHSMITH_EMULATOR is defined, and in
the device code of a GPU, for which it is not."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from flashsmith.configs import CONFIG_CLASSES
from support.emulator_program import CXX
from support.paths import CSRC, CSRC_INCLUDE

HEADERS = [
    "flashsmith/params.h",
    "flashsmith/backward_params.h",
    "flashsmith/decode_params.h",
    *(kind.kernel_header for kind in CONFIG_CLASSES),
]
# Only device code passes pointers to functions, and configurations are template parameters.
NOT_PASSED = re.compile(r"Kernels$|Config$|^Variant$")
STRUCT = re.compile(r"^struct (\w+)(?: : \w+)? \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
MEMBERS = re.compile(r"^  (?!static)(?:const )?[\w:]+ ([^();{}]+);", re.MULTILINE)

PROGRAM = """\
#include <cstddef>
#include <cstdio>

{includes}

using namespace flashsmith;

int main() {{
{lines}
}}
"""


def structs() -> dict[str, list[str]]:
    """Returns the members of each struct that kernels take, or that is part of such a struct."""
    found = {}
    for header in HEADERS:
        text = re.sub(r"//.*", "", (CSRC_INCLUDE / header).read_text())
        for name, body in STRUCT.findall(text):
            if NOT_PASSED.search(name) or f"struct {name} {{}}" in text:
                continue
            declared = ",".join(MEMBERS.findall(body))
            found[name] = re.findall(r"(\w+)(?:\[\w+\])*\s*(?:=[^,]*)?(?:,|$)", declared)
    return found


def program(found: dict[str, list[str]]) -> str:
    lines = []
    for name, members in found.items():
        lines.append(f'  std::printf("{name} %zu %zu\\n", sizeof({name}), alignof({name}));')
        lines += [
            f'  std::printf("{name}.{m} %zu %zu\\n", offsetof({name}, {m}), '
            f"sizeof({name}{{}}.{m}));"
            for m in members
        ]
    includes = "\n".join(f'#include "{header}"' for header in dict.fromkeys(HEADERS))
    return PROGRAM.format(includes=includes, lines="\n".join(lines))


def layout(compiler: list[str], source: Path) -> list[str]:
    target = source.with_suffix("")
    command = [*compiler, "-std=c++20", f"-I{CSRC_INCLUDE}", f"-I{CSRC}", str(source)]
    subprocess.run([*command, "-o", str(target)], check=True, capture_output=True, text=True)
    return subprocess.run([target], check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.fixture(scope="module")
def of_host(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    source = tmp_path_factory.mktemp("host") / "probe.cpp"
    source.write_text(program(structs()))
    return layout([str(CXX), "-DFLASHSMITH_EMULATOR"], source)


def test_the_structs_of_all_kernels_are_compared(of_host: list[str]) -> None:
    found = structs()
    assert {kind.kernel_arguments for kind in CONFIG_CLASSES} <= set(found)
    assert found["Sm90ForwardKernelArgs"][:5] == ["Q_map", "K_map", "V_map", "O_map", "problem"]
    assert found["Band"] == ["diagonal", "top_left", "ahead", "behind"]
    assert len(of_host) > 150


def test_device_code_has_the_layout_of_the_host(of_host: list[str], tmp_path: Path) -> None:
    source = tmp_path / "probe.cpp"
    source.write_text(program(structs()))
    assert layout([str(CXX)], source) == of_host


def test_nvcc_has_the_layout_of_the_host(of_host: list[str], tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if not nvcc:
        pytest.skip("needs nvcc")
    source = tmp_path / "probe.cu"
    source.write_text(program(structs()))
    assert layout([nvcc, "-w"], source) == of_host
