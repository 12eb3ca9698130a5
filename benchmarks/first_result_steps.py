"""The process that first_result.py measures: it imports one candidate alone, and calls it.

    python first_result_steps.py CANDIDATE DEVICE

Prints a line of JSON for each step. Only the standard library is imported before the clock begins,
so that all other imports count. A step that fails has the reason, and the next one is tried.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

BEGIN = time.perf_counter()

import torch  # noqa: E402  after the clock began

STEPS_OF = {
    "torch": ("attention", "backward"),
    "flashsmith": ("attention", "backward", "decode", "window and softcap", "score_mod"),
    "fa4": ("attention", "backward", "window and softcap"),
    "flashinfer": ("decode",),
}
WINDOW, SOFTCAP, PAGE = (100, 0), 15.0, 64


class Inputs:
    """The tensors of all steps; on a CPU they are small, because the emulator computes."""

    def __init__(self, device: str) -> None:
        batch, length, heads, heads_kv, d_head = (
            (2, 1024, 16, 4, 128) if device == "cuda" else (1, 100, 2, 1, 64)
        )
        randn = lambda *shape: torch.randn(shape, device=device, dtype=torch.bfloat16)  # noqa: E731
        self.q = randn(batch, length, heads, d_head).requires_grad_()
        self.k, self.v = (randn(batch, length, heads, d_head).requires_grad_() for _ in range(2))
        self.do = torch.randn_like(self.q)
        pages = 2 * batch
        self.query = randn(batch, 1, heads, d_head)
        self.k_pages, self.v_pages = (randn(pages, PAGE, heads_kv, d_head) for _ in range(2))
        self.table = torch.arange(pages, device=device, dtype=torch.int32).view(batch, 2)
        self.lengths = torch.full((batch,), 2 * PAGE - 1, device=device, dtype=torch.int32)
        # Torch imports much for the first gradients that are given; that is no candidate's wait.
        torch.autograd.grad(self.q * 2, self.q, self.do)
        self.synchronize()

    def synchronize(self) -> None:
        if self.q.is_cuda:
            torch.cuda.synchronize()

    @property
    def leaves(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.q, self.k, self.v


def functions_of(candidate: str, given: Inputs) -> dict[str, Callable[[], torch.Tensor]]:
    """Imports a candidate, and returns its functions by the names of steps."""
    q, k, v = given.leaves
    if candidate == "torch":
        from torch.nn.functional import scaled_dot_product_attention as sdpa

        rows = [t.transpose(1, 2) for t in given.leaves]
        return {"attention": lambda: sdpa(*rows, is_causal=True).transpose(1, 2)}
    if candidate == "flashsmith":
        import flashsmith

        def half(score, *_):  # type: ignore[no-untyped-def]
            return score * 0.5

        pages = given.query, given.k_pages, given.v_pages
        lengths = {"cache_seqlens": given.lengths, "block_table": given.table}
        window = {"window_size": WINDOW, "softcap": SOFTCAP}
        return {
            "attention": lambda: flashsmith.attention(q, k, v, causal=True),
            "decode": lambda: flashsmith.decode(None, *pages, **lengths),
            "window and softcap": lambda: flashsmith.attention(q, k, v, **window),
            "score_mod": lambda: flashsmith.attention(q, k, v, score_mod=half),
        }
    if candidate == "fa4":
        from flash_attn.cute.interface import flash_attn_func

        def call(**more):  # type: ignore[no-untyped-def]
            result = flash_attn_func(q, k, v, **more)
            return result[0] if isinstance(result, tuple) else result

        return {
            "attention": lambda: call(causal=True),
            "window and softcap": lambda: call(window_size=WINDOW, softcap=SOFTCAP),
        }
    import flashinfer

    return {"decode": lambda: decode_by(flashinfer, given)}


def decode_by(flashinfer, given: Inputs) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """Plans and runs FlashInfer's decode over pages."""
    batch, pages = given.table.shape
    heads, heads_kv, d_head = given.query.shape[2], *given.k_pages.shape[2:]
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    first = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * pages
    last = given.lengths - (pages - 1) * PAGE
    dtype = torch.bfloat16
    kinds = {"q_data_type": dtype, "kv_data_type": dtype, "o_data_type": dtype}
    wrapper.plan(first, given.table.flatten(), last, heads, heads_kv, d_head, PAGE, **kinds)
    o = wrapper.run(given.query[:, 0], (given.k_pages, given.v_pages))
    return o[:, None]


def expected(step: str, given: Inputs) -> torch.Tensor:
    """Returns the result of a step in float32, by torch."""
    q, k, v = given.leaves
    if step == "decode":
        n = int(given.lengths[0])
        q = given.query
        rows = (pages[given.table.long()].flatten(1, 2) for pages in (given.k_pages, given.v_pages))
        k, v = (t[:, :n].repeat_interleave(q.shape[2] // t.shape[2], 2) for t in rows)
    q, k, v = (t.float().transpose(1, 2) for t in (q, k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    rows, keys = (torch.arange(n, device=q.device) for n in scores.shape[-2:])
    behind = rows[:, None] - keys
    if step == "attention":
        scores = scores.masked_fill(behind < 0, -torch.inf)
    elif step == "window and softcap":
        scores = SOFTCAP * torch.tanh(scores / SOFTCAP)
        scores = scores.masked_fill((behind < 0) | (behind > WINDOW[0]), -torch.inf)
    elif step == "score_mod":
        scores = scores * 0.5
    return (scores.softmax(-1) @ v).transpose(1, 2)


def error_of(found: torch.Tensor | tuple[torch.Tensor, ...], step: str, given: Inputs) -> float:
    """Returns the largest error of a step's results, as a share of the largest element."""
    if isinstance(found, torch.Tensor):
        pairs = [(found, expected(step, given))]
    else:
        o = expected("attention", given)
        pairs = zip(found, torch.autograd.grad(o, given.leaves, given.do.float()), strict=True)
    return max(((a.float() - b).abs().max() / b.abs().max()).item() for a, b in pairs)


def main(candidate: str, device: str) -> None:
    given, results = Inputs(device), {}
    rows: dict[str, dict[str, str]] = {}
    after_torch = time.perf_counter()

    def record(step: str, begin: float, failure: str = "") -> None:
        given.synchronize()
        now = time.perf_counter()
        seconds = {"seconds": f"{now - begin:.3f}", "since_torch": f"{now - after_torch:.3f}"}
        rows[step] = {"step": step, **seconds, "failure": failure}

    record("torch's first kernels", BEGIN)
    begin = time.perf_counter()
    functions = functions_of(candidate, given)
    record("import", begin)
    for step in STEPS_OF[candidate]:
        begin = time.perf_counter()
        try:
            if step == "backward":
                found = torch.autograd.grad(results["attention"], given.leaves, given.do)
            else:
                found = functions[step]()
        except Exception as error:
            record(step, begin, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        else:
            record(step, begin)
            results[step] = found
    for step, found in results.items():
        rows[step]["error"] = f"{error_of(found, step, given):.2g}"
    print(*map(json.dumps, rows.values()), sep="\n", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
