"""Functions of the C++ host that no launch on the emulator reaches, called by a program."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from support.emulator_program import CXX, FLAGS
from support.paths import PROGRAMS

SOURCE = PROGRAMS / "host/values.cpp"


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    program = tmp_path_factory.mktemp("host") / "values"
    subprocess.run([str(CXX), *FLAGS, str(SOURCE), "-o", str(program)], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_grid_is_whole_clusters(values: dict[str, Any]) -> None:
    """The grids are for 6 tiles on 1 to 9 SMs: a GPU would refuse to launch a part of a cluster."""
    assert values["one tile a block"] == [6] * 9
    assert values["clusters of 2, one tile a block"] == [6] * 9
    assert values["persistent"] == [1, 2, 3, 4, 5, 6, 6, 6, 6]
    assert values["clusters of 2"] == [0, 2, 2, 4, 4, 6, 6, 6, 6]


def test_blocks_of_queries_are_whole_clusters(values: dict[str, Any]) -> None:
    """The numbers of rows are 1, 127, 128, 129, 256 and 257."""
    assert values["Q blocks"] == [1, 1, 1, 2, 2, 3]
    assert values["Q blocks in clusters of 2"] == [2, 2, 2, 4, 4, 6]


def test_gpus_that_have_a_family(values: dict[str, Any]) -> None:
    """The capabilities are 7.0 to 12.5."""
    newer = [f"{major}.{minor}" for major in range(8, 13) for minor in (0, 5)]
    assert values["8.0 or newer"] == newer
    assert values["8.5 or newer"] == newer[1:]
    assert values["9.0 alone"] == ["9.0"]


def test_quotients_by_multiplying_are_those_of_a_division(values: dict[str, Any]) -> None:
    """The program tries 5000 divisors up to 2^31 - 1, with 120 numbers each."""
    assert values["wrong quotients"] == [-1]


def test_numbers_that_kernels_may_have(values: dict[str, Any]) -> None:
    assert values["fragments at a time"] == [-1, 0, 2, 4, 8, 16, 32, 64, 128, 256]
    assert values["columns of a wgmma"] == [-1, *range(16, 257, 16)]


def test_groups_have_the_parts_that_were_fastest_on_an_H200(values: dict[str, Any]) -> None:
    """The program has the calls, in this order; no launch on the emulator has as many tiles. With
    four parts 28/4 x 8649, the second one, takes 8% longer, and with one 14 x 64/8 x 2009, 11%."""
    any_order, in_order = [8, 7, 7, 7, 8, 1, 1], [2, 2]
    assert values["parts"] == [*any_order, *in_order]
