"""Order: any order of warps gives the same bits, and tiles come in the order that is fastest.

Results do not depend on the order of tiles, but speed does (docs/kernels/sm90-forward.md).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from itertools import groupby, product

import pytest
import torch

from flashsmith.configs import KernelId
from flashsmith.runtime import emulation
from support.emulator_program import CXX, FLAGS
from support.kernels import EACH
from support.paths import PROGRAMS
from support.problems import Emulated, random_qkv, run

SOURCE = PROGRAMS / "host/tiles.cpp"
Place = tuple[int, int, int]  # Q block, head, batch
Orders = dict[str, list[Place]]


@EACH
def test_five_warp_orders_are_bitwise_equal(instance: KernelId, emulated: Emulated) -> None:
    kernel, qkv = emulated(instance), random_qkv(instance.config, 200, heads=2)
    first = run(kernel, qkv)
    assert not first.isnan().any()
    for seed in range(1, 5):
        with emulation(kernel, seed=seed, count=False):
            assert torch.equal(run(kernel, qkv), first), f"seed {seed}"


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Orders]:
    program = tmp_path_factory.mktemp("host") / "tiles"
    subprocess.run([str(CXX), *FLAGS, str(SOURCE), "-o", str(program)], check=True)

    def ask(n_Q_blocks: int, n_heads: int, batch: int) -> Orders:
        sizes = map(str, (n_Q_blocks, n_heads, batch))
        done = subprocess.run([program, *sizes], capture_output=True, text=True, check=True)
        return {
            name: [tuple(p) for p in places] for name, places in json.loads(done.stdout).items()
        }

    return ask


@pytest.mark.parametrize("sizes", [(4, 3, 2), (2, 5, 1), (6, 1, 1), (2, 16, 2)])
def test_every_tile_comes_once(orders: Callable[..., Orders], sizes: tuple[int, int, int]) -> None:
    every = sorted(product(*map(range, sizes)))
    for name, places in orders(*sizes).items():
        assert sorted(places) == every, name


def test_head_by_head(orders: Callable[..., Orders]) -> None:
    places = orders(3, 2, 2)["head by head"]
    assert places == [(q, h, b) for b in range(2) for h in range(2) for q in range(3)]


def test_longest_first_in_a_group_of_heads(orders: Callable[..., Orders]) -> None:
    """The last Q block of each head of the group comes first, then the one before; the last group
    is small."""
    places = orders(3, 3, 1)["groups of 2"]
    assert places == [(2, 0, 0), (2, 1, 0), (1, 0, 0), (1, 1, 0), (0, 0, 0), (0, 1, 0),
                      (2, 2, 0), (1, 2, 0), (0, 2, 0)]  # fmt: skip
    assert [q for q, _, _ in orders(4, 16, 1)["groups of 16"]] == sorted([3, 2, 1, 0] * 16)[::-1]


def test_groups_go_on_over_batches(orders: Callable[..., Orders]) -> None:
    heads = [(b, h) for q, h, b in orders(2, 3, 2)["groups of 2"] if q == 1]
    assert heads == list(product(range(2), range(3)))


def test_blocks_of_a_cluster_have_neighbouring_rows_of_one_head(
    orders: Callable[..., Orders],
) -> None:
    places = orders(4, 3, 2)["groups of 2, clusters"]
    for (q0, *head0), (q1, *head1) in zip(places[::2], places[1::2], strict=True):
        assert head0 == head1 and q0 % 2 == 0 and q1 == q0 + 1
    by_group = [list(g) for _, g in groupby(places, key=lambda p: (p[2] * 3 + p[1]) // 2)]
    assert len(by_group) == 3
    for group in by_group:
        pairs = [q // 2 for q, _, _ in group]
        assert pairs == sorted(pairs, reverse=True), "longest first"
