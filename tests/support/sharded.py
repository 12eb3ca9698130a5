"""Compares attention of DTensors in two processes, which communicate by gloo, with one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement

import flashsmith
from support.processes import run_in_processes

PLACES: dict[str, Placement] = {
    "batch": Shard(0), "heads": Shard(2), "replicas": Replicate(), "rows": Shard(1),
}  # fmt: skip
CU = torch.tensor([0, 3, 3, 10], dtype=torch.int32)
ATTENTION = (
    "causal", "heads that are not shared evenly", "alibi and sinks", "alibi of a batch",
    "bias of all", "bias of none", "seqused", "packed", "dropout",
)  # fmt: skip
DECODE = ("dense", "pages", "entries", "appended", "appended to pages", "scaled", "out")
# All cases are sharded by batch and by heads, some also replicated and sharded by rows.
CASES = [
    (case, name)
    for case in (*ATTENTION, "scaled_dot_product_attention", *DECODE)
    for name in (PLACES if case in ("causal", "dense", "appended", "out") else ("batch", "heads"))
]
# An outcome has the largest difference of each tensor, and the placement of the results.
Outcomes = dict[tuple[str, str], tuple[dict[str, float], str]]


def outcomes_of_two(folder: Path) -> Outcomes:
    """Runs all cases in two processes.

    folder: A folder for the file by which they meet, and for the outcomes.
    """
    run_in_processes(_run, 2, folder)
    found: Outcomes = torch.load(folder / "outcomes.pt")
    return found


def _run(rank: int, folder: Path) -> None:
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    found: Outcomes = {}
    for case, name in CASES:
        torch.manual_seed(0)
        run = _attend if case in ATTENTION else _sdpa if case not in DECODE else _decode
        found[case, name] = run(case, mesh, PLACES[name])
    if rank == 0:
        torch.save(found, folder / "outcomes.pt")


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


def _placed(t: Any, mesh: Any, placement: Placement) -> Any:
    return distribute_tensor(t.detach().clone(), mesh, [placement]).requires_grad_(t.requires_grad)


def _compare(found: dict[str, Any], right: dict[str, Any]) -> dict[str, float]:
    assert found.keys() == right.keys()
    differences = {}
    for name, t in found.items():
        assert isinstance(t, DTensor)
        whole = t.full_tensor()
        assert whole.shape == right[name].shape, (name, whole.shape, right[name].shape)
        difference = (whole.double() - right[name].double()).nan_to_num(0, 0, 0).abs().max().item()
        differences[name] = difference / max(1.0, right[name].abs().max().item())
    return differences


def _with_gradients(tensors: dict[str, Any], o: Any, lse: Any, do: Any, dlse: Any) -> Any:
    leaves = {name: t for name, t in tensors.items() if t.requires_grad}
    gradients = torch.autograd.grad([o, lse], list(leaves.values()), [do, dlse])
    return {"o": o, "lse": lse} | {f"d{name}": g for name, g in zip(leaves, gradients, strict=True)}


def _attend(case: str, mesh: Any, placement: Placement) -> tuple[dict[str, float], str]:
    heads = (6, 3) if case == "heads that are not shared evenly" else (4, 2)
    rows: tuple[int, ...] = (10,) if case == "packed" else (2, 7)
    if case == "packed" and isinstance(placement, Shard):
        placement = Shard(max(placement.dim - 1, 0))
    of = {"q": random(*rows, heads[0], 16), "k": random(*rows, heads[1], 16)}
    of["v"] = random(*rows, heads[1], 8)
    weights: dict[str, Any] = {}
    others: dict[str, Any] = {}
    keywords: dict[str, Any] = {"causal": True, "return_lse": True}
    if case == "alibi and sinks":
        weights, others = {"sinks": torch.randn(4)}, {"alibi_slopes": torch.rand(4)}
    if case == "alibi of a batch":
        others["alibi_slopes"] = torch.rand(2, 4)
    if case.startswith("bias"):
        weights["bias"] = random(2, 4, 7, 7) if case == "bias of all" else random(1, 1, 7, 7)
    if case == "seqused":
        others["seqused_k"] = torch.tensor([3, 7], dtype=torch.int32)
    if case == "packed":
        others |= {"cu_seqlens_q": CU, "cu_seqlens_k": CU}
    if case == "dropout":
        keywords["dropout_p"] = 0.5
        others["rng_state"] = torch.tensor([5, 7])
    tensors = {name: t.requires_grad_() for name, t in (of | weights).items()}
    o, lse = flashsmith.attention(**tensors, **others, **keywords)
    do, dlse = torch.randn_like(o), torch.randn_like(lse)
    right = _with_gradients(tensors, o, lse, do, dlse)
    placed = {
        name: _placed(t, mesh, placement if name in of else Replicate())
        for name, t in (tensors | others).items()
    }
    o, lse = flashsmith.attention(**placed, **keywords)
    given = (distribute_tensor(t, mesh, [Replicate()]) for t in (do, dlse))
    found = _with_gradients({name: placed[name] for name in tensors}, o, lse, *given)
    return _compare(found, right), str(o.placements[0])


def _sdpa(case: str, mesh: Any, placement: Placement) -> tuple[dict[str, float], str]:
    place = Shard({0: 0, 1: 2, 2: 1}[placement.dim]) if isinstance(placement, Shard) else placement
    given = [random(2, heads, 7, 16) for heads in (4, 2, 2)]
    mask = torch.rand(2, 1, 7, 7) < 0.6
    right = flashsmith.scaled_dot_product_attention(*given, mask, enable_gqa=True)
    placed = [_placed(t, mesh, place) for t in given]
    o = flashsmith.scaled_dot_product_attention(
        *placed, _placed(mask, mesh, Replicate()), enable_gqa=True
    )
    at = o.placements[0]
    back = Shard({0: 0, 2: 1, 1: 2}[at.dim]) if isinstance(at, Shard) else at
    return _compare({"o": o}, {"o": right}), str(back)


def _decode(case: str, mesh: Any, placement: Placement) -> tuple[dict[str, float], str]:
    ints = torch.int32
    of_q: dict[str, Any] = {"q": random(2, 1, 4, 64)}
    in_pages = "pages" in case
    caches = {"k_cache": random(6, 16, 2, 64), "v_cache": random(6, 16, 2, 64)}
    others: dict[str, Any] = {"cache_seqlens": torch.tensor([9, 5], dtype=ints)}
    if in_pages:
        others["block_table"] = torch.tensor([[3, 0], [1, 5]], dtype=ints)
    elif case == "entries":
        others["cache_batch_idx"] = torch.tensor([4, 2], dtype=ints)
    else:
        caches = {name: t[:2] for name, t in caches.items()}
    if "appended" in case:
        of_q |= {"k_new": random(2, 1, 2, 64), "v_new": random(2, 1, 2, 64)}
    if case == "scaled":
        caches = {name: t.to(torch.float8_e4m3fn) for name, t in caches.items()}
        others |= {"k_scale": torch.rand(2, 2) + 1, "v_scale": torch.rand(2) + 1}
    whole = caches | {"out": torch.zeros(2, 1, 4, 64).half()} if case == "out" else caches
    copies = {name: t.clone() for name, t in whole.items()}
    o, lse = flashsmith.decode(None, **of_q, **copies, **others, return_lse=True)
    shares = (in_pages or case == "entries") and placement == Shard(0)
    of_cache = Replicate() if shares else placement
    placed = {name: _placed(t, mesh, placement) for name, t in of_q.items()}
    placed |= {name: _placed(t, mesh, Replicate()) for name, t in others.items()}
    written = {
        name: distribute_tensor(t.view(torch.uint8), mesh, [of_cache]) if case == "scaled"
        else _placed(t, mesh, of_cache) for name, t in whole.items()
    }  # fmt: skip
    if case == "scaled":
        written = {
            name: DTensor.from_local(t.to_local().view(torch.float8_e4m3fn), mesh, [of_cache])
            for name, t in written.items()
        }
    try:
        found, found_lse = flashsmith.decode(None, **placed, **written, return_lse=True)
    except RuntimeError as error:
        return {}, str(error)
    same = {} if case == "scaled" else written
    right = {"o": o, "lse": lse} | {name: copies[name] for name in same}
    return _compare({"o": found, "lse": found_lse} | same, right), str(found.placements[0])
