"""A repeated call of ``decode`` that is refused writes nothing, and has the message of a first
call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashsmith import decode


def arguments() -> dict[str, Any]:
    q, k, v, k_new, v_new = (
        torch.randn(2, n, 2, 64).half() for n in (1, 32, 32, 1, 1)
    )  # fmt: skip
    lengths = torch.tensor([5, 9], dtype=torch.int32)
    return {
        "q": q, "k_cache": k, "v_cache": v, "cache_seqlens": lengths, "k_new": k_new,
        "v_new": v_new,
    }  # fmt: skip


REFUSED: dict[str, dict[str, Any]] = {
    "o with gaps": {"out": torch.empty(2, 1, 2, 128).half()[..., ::2]},
    "o of another dtype": {"out": torch.empty(2, 1, 2, 64)},
    "q that is misaligned": {"q": torch.empty(257).half()[1:].view(2, 1, 2, 64)},
    "slopes of more heads": {"alibi_slopes": torch.ones(3)},
    "sinks of more heads": {"sinks": torch.ones(3)},
    "new keys in float32": {"k_new": torch.randn(2, 1, 2, 64)},
    "two new keys and one value": {"k_new": torch.randn(2, 2, 2, 64).half()},
}


@pytest.mark.parametrize("changed", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_writes_no_key(changed: dict[str, Any]) -> None:
    usual = {
        name: torch.ones(2)
        if name in ("alibi_slopes", "sinks")
        else torch.empty(2, 1, 2, 64).half()
        for name in changed
        if name in ("alibi_slopes", "sinks", "out")
    }
    messages = []
    for times in (0, 2):
        given = arguments() | usual
        for _ in range(times):
            decode(None, **given)
        before = given["k_cache"].clone(), given["v_cache"].clone()
        given |= {"k_new": given["k_new"] + 1, "v_new": given["v_new"] + 1} | changed
        with pytest.raises((TypeError, ValueError)) as caught:
            decode(None, **given)
        messages.append((caught.type, str(caught.value)))
        assert torch.equal(given["k_cache"], before[0])
        assert torch.equal(given["v_cache"], before[1])
    assert messages[0] == messages[1]
