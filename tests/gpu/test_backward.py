"""The backward on a GPU: its soak, autograd, graphs, compilers, memory and a training run."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

import flashsmith
from flashsmith.lab.soak import CardLoad, gpu_extent
from support.autograd import ALL_VARIANTS, plain_cases, runs_that_differ, what_is_wrong
from support.scripts import load_script

pytestmark = pytest.mark.gpu

ROUNDS = 4  # over every variant, dtype and d_head
RUNS = 1000
STEPS = 100
_MIN_SPREAD = 0.02  # of losses: two seeds may end alike by chance
Tensors = list[torch.Tensor]


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_autograd_gives_the_gradients_of_all_that_attention_computes(seed: int) -> None:
    extent = gpu_extent(torch.cuda.get_device_properties("cuda").multi_processor_count)
    wrong = [what_is_wrong(case, "cuda") for case in plain_cases(seed, extent, ALL_VARIANTS)]
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_deterministic_gradients_are_the_same_beside_another_stream() -> None:
    load = CardLoad()
    assert runs_that_differ(RUNS, "cuda", load) == 0
    load.wait()


def leaves(seed: int) -> Tensors:
    """Returns q, k, v, and the gradient of o."""
    torch.manual_seed(seed)
    shapes = ((2, 200, 4, 64), (2, 300, 2, 64), (2, 300, 2, 64), (2, 200, 4, 64))
    tensors = [torch.randn(shape, device="cuda").bfloat16() for shape in shapes]
    return [*(t.requires_grad_() for t in tensors[:3]), tensors[3]]


def gradients(function: Callable[..., Any], tensors: Tensors) -> tuple[torch.Tensor, ...]:
    *qkv, do = tensors
    return torch.autograd.grad(function(*qkv), qkv, do)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **keywords: Any) -> Any:
    return flashsmith.attention(q, k, v, causal=True, **keywords)


def test_a_graph_of_both_directions_takes_new_data() -> None:
    def run() -> tuple[torch.Tensor, ...]:
        return gradients(lambda *qkv: causal(*qkv, deterministic=True), static)

    static = leaves(0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for seed in (1, 2):
        fresh = leaves(seed)
        with torch.no_grad():
            for own, new in zip(static, fresh, strict=True):
                own.copy_(new)
        graph.replay()
        expected = gradients(lambda *qkv: causal(*qkv, deterministic=True), fresh)
        assert all(map(torch.equal, captured, expected)), seed


def test_inductor_compiles_both_directions() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return causal(q * 0.5, k.sigmoid(), v, deterministic=True) + q.sin()

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True)
    for seed in (0, 1):
        expected = gradients(function, leaves(seed))
        for own, right in zip(gradients(compiled, leaves(seed)), expected, strict=True):
            torch.testing.assert_close(own, right, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("deterministic", [False, True])
def test_no_memory_is_kept_after_a_call(deterministic: bool) -> None:
    def run() -> None:
        gradients(lambda *qkv: causal(*qkv, deterministic=deterministic), leaves(0))

    for _ in range(5):  # builds kernels, and replaces what was kept for calls of earlier tests
        run()
    gc.collect()  # memory of earlier tests
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        run()
    torch.cuda.synchronize()
    # Less is left if memory of an earlier test is freed meanwhile.
    assert torch.cuda.memory_allocated() <= before


@pytest.fixture(scope="module")
def training() -> ModuleType:
    return load_script("benchmarks/train_gpt.py")


@pytest.mark.parametrize("varlen", [False, True], ids=["batch", "packed"])
def test_a_small_gpt_learns_as_much_as_with_plain_products(
    training: ModuleType, varlen: bool
) -> None:
    """Both runs begin with the same weights and read the same text, so only rounding differs. That
    must change the loss less than another order of the text does."""
    sizes = training.Sizes(layers=2, heads=4, words=128, batch=16, length=256, learning_rate=2e-3)

    def loss(attention: str, seed: int) -> float:
        attend = training.ATTENTIONS[attention]
        steps = training.train(sizes, attend, seed, STEPS, "cuda", varlen=varlen)
        assert steps[0][0] > steps[-1][0] + 0.5, "it learns"
        return float(training.final_loss([loss for loss, _ in steps]))

    ours, math, other = loss("flashsmith", 0), loss("sdpa_math", 0), loss("sdpa_math", 1)
    print(f"ours {ours:.4f}, SDPA math {math:.4f}, and with another order of the text {other:.4f}")
    assert abs(ours - math) <= max(abs(math - other), _MIN_SPREAD)
