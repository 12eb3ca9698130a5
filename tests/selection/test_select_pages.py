"""The kernels that serve paged KV caches: only some families have them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashsmith.configs import DType, Variant, Workload
from flashsmith.configs.registry import FORWARD, reads_pages_on
from flashsmith.configs.sm90.family import SM90_FORWARD
from flashsmith.problem import Problem
from flashsmith.selection.choose import choose_for
from flashsmith.selection.served import served_instances
from support.tables import A100, H100, H200, SM90, SMALL, make_entry, write_user_table

pytestmark = pytest.mark.usefixtures("tuned")

PAGES = Variant.from_name("varlen+paged")
WORKLOAD = Workload(Problem.square(DType.FP16, 128, 4, 16, 1024), PAGES)


def test_tables_serve_pages_but_for_the_family_that_cannot() -> None:
    write_user_table(make_entry([SMALL, replace(SM90, cluster_size=2, dynamic_queue=False)]))
    choice = choose_for(FORWARD, WORKLOAD, H200)
    assert choice.config == replace(SM90, dynamic_queue=False)  # each thread block on its own
    assert choice.source is not None
    assert (
        choose_for(FORWARD, replace(WORKLOAD, variant=Variant(varlen=True)), H200).config == SMALL
    )


def test_where_no_family_reads_pages_that_is_said() -> None:
    with pytest.raises(ValueError, match=r"the sm80 family has no kernels for varlen\+paged"):
        choose_for(FORWARD, WORKLOAD, A100)


def test_the_emulator_s_plainest_family_that_reads_pages_is_the_newer() -> None:
    assert choose_for(FORWARD, WORKLOAD, None).config == SM90_FORWARD.heuristic(
        Workload.square(DType.FP16, 128, 1024)
    )


@pytest.mark.parametrize(("gpu", "can"), [(None, True), (H100, True), (A100, False)])
def test_who_reads_pages(gpu: str | None, can: bool) -> None:
    assert reads_pages_on(gpu) is can
    served = served_instances(gpu, dtypes=[DType.BF16], d_heads=[64], variants=[PAGES])
    assert bool(served) is can
    assert all(type(each.config) is SM90_FORWARD.config for each in served)
