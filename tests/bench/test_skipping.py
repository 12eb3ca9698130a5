"""The candidate that leaves out keys which no row of a warpgroup sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flashsmith.configs import CAUSAL, DType, Workload
from flashsmith.configs.registry import BACKWARD, FORWARD
from flashsmith.configs.workload import BackwardWorkload
from flashsmith.lab.bench.operations import skipping
from flashsmith.lab.bench.operations.skipping import choose_skipping
from flashsmith.selection.choose import choose_for

H200, CPU = ("NVIDIA H200", (9, 0)), torch.device("cpu")
OF = {
    "forward": (FORWARD, Workload),
    "backward": (BACKWARD, BackwardWorkload),
}


@pytest.mark.parametrize(("operation", "kind"), OF.values(), ids=OF.keys())
def test_it_is_the_choice_with_one_more_feature(
    operation: object, kind: type[Workload], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skipping, "gpu_of", lambda _: H200)
    workload = kind.square(DType.BF16, 128, 4096, CAUSAL)
    found = choose_skipping(operation, workload, CPU)
    chosen = choose_for(operation, workload, *H200).config
    assert found == replace(chosen, skip_unseen=True) != chosen
    assert found.problems() == []


def test_other_families_have_none() -> None:
    workload = Workload.square(DType.BF16, 128, 4096, CAUSAL)
    assert choose_skipping(FORWARD, workload, CPU) is None
