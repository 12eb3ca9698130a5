"""The workloads that a table is tuned on, one a bucket: square ones, and ones with longer k."""

from __future__ import annotations

import pytest

from flashsmith.cli.options import make_request
from flashsmith.configs import Workload
from flashsmith.gpus import count_sms
from flashsmith.lab.commands.grids import GRIDS, tuning_workloads
from flashsmith.problem import Bucket

H200, A30 = "NVIDIA H200", "NVIDIA A30"


def workloads(gpu: str = H200, **options: str | int) -> list[Workload]:
    kind = {"dtypes": "bf16", "d_heads": "128", "masks": "full"}
    return tuning_workloads(make_request(**(kind | options)), gpu)  # type: ignore[arg-type]


def buckets(found: list[Workload], gpu: str = H200) -> list[Bucket]:
    return [each.problem.bucket(count_sms(gpu)) for each in found]


def test_every_bucket_has_one_workload_whatever_the_gpu() -> None:
    for gpu in (H200, A30):
        found = buckets(workloads(gpu), gpu)
        assert len(found) == len(set(found)) >= 12
    assert set(buckets(workloads())) == {
        *(Bucket(n, 1024) for n in (512, 1024, 2048, 4096, 8192, 16384)),
        *(Bucket(512, fill) for fill in (64, 128, 256)),
        *(Bucket(1024, fill) for fill in (128, 256, 512)),
        *(Bucket(2048, fill) for fill in (256, 512)),
        Bucket(4096, 512),
        *(Bucket(8192, fill) for fill in (64, 128)),
        Bucket(16384, 64),
    }


def test_of_two_workloads_in_one_bucket_that_of_the_earlier_grid_counts() -> None:
    full, small = (workloads(grids=name) for name in ("full", "small"))
    long = Bucket(8192, 1024)
    assert long in buckets(full) and long in buckets(small)
    (found,) = (each for each in workloads() if buckets([each]) == [long])
    assert found in full and found not in small


def test_grids_are_asked_for_by_name() -> None:
    sizes = {name: [each.problem.sizes for each in workloads(grids=name)] for name in GRIDS}
    assert sizes["full"][:2] == ["32 x 16 x 512", "16 x 16 x 1024"] and len(sizes["full"]) == 6
    assert sizes["small"][:4] == ["1 x 16 x 512", "2 x 16 x 512", "4 x 16 x 512", "1 x 16 x 1024"]
    assert sizes["chunk"] == ["1 x 16 x 128/8192", "1 x 16 x 1024/8192"]
    assert sizes["decode"] == ["4 x 16 x 1/16384"]
    both = workloads(grids="decode, chunk")
    assert [each.problem.sizes for each in both] == sizes["decode"] + sizes["chunk"]


def test_a_kind_is_tuned_for_all_its_buckets_before_the_next() -> None:
    found = workloads(dtypes="fp16,bf16", masks="full,causal")
    kinds = list(dict.fromkeys(each.kind for each in found))
    assert len(kinds) == 4 and len(found) == 4 * len(workloads())
    assert [each.kind for each in found] == sorted(
        (each.kind for each in found), key=lambda kind: kinds.index(kind)
    )


def test_sizes_stand_in_place_of_grids() -> None:
    (one,) = workloads(seq_lens="777", batch=1)
    assert one.problem.sizes == "1 x 16 x 777"
    with pytest.raises(ValueError, match="--grid sets all sizes; leave out --seq-len"):
        workloads(grids="small", heads=8)
    with pytest.raises(ValueError, match="--grid is 'tiny'; supported: full, small, chunk, decode"):
        workloads(grids="tiny")
