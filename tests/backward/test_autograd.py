"""``attention`` in autograd: in eager code, compiled, checkpointed, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import flashsmith
from flashsmith.configs import CAUSAL, KernelId, Variant
from flashsmith.jit import Target
from flashsmith.reference import ReferenceGradients
from flashsmith.runtime import load_kernels
from support.backward_kernels import OF_PLAIN, PLAIN
from support.gradient_calls import Call, call_of, variant_call
from support.gradients import assert_near_truth
from support.semantics import SM80 as FORWARD

KERNELS = [kernel for kernel in OF_PLAIN if kernel.config == PLAIN["sm80"]]
EACH = pytest.mark.parametrize("variant", [k.variant for k in KERNELS], ids=lambda v: v.name)
BF16 = torch.bfloat16
# MIXED is a dense variant with sinks, a bias and more; `causal+varlen` stands for varlen.
MIXED = Variant.from_name("window+softcap+bias+sinks")


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    forward = [KernelId(FORWARD, kernel.variant) for kernel in KERNELS]
    load_kernels([*KERNELS, *forward], Target.emulator())


@pytest.fixture(autouse=True)
def _fresh_graphs() -> None:
    torch._dynamo.reset()


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **keywords: Any) -> Any:
    return flashsmith.attention(q, k, v, config=FORWARD, return_lse=True, **keywords)


def leaves_of(call: Call) -> dict[str, torch.Tensor]:
    """Returns a copy of each tensor that has a gradient, as a leaf of a new graph."""
    given = {"q": call.q, "k": call.k, "v": call.v}
    given |= {n: t for n, t in call.keywords.items() if n in ("sinks", "bias")}
    return {name: t.clone().requires_grad_() for name, t in given.items()}


def differentiated(call: Call, function: Any = attend) -> ReferenceGradients:
    """Returns the gradients of the leaves after ``backward``."""
    leaves = leaves_of(call)
    o, lse = function(**call.keywords | leaves)
    torch.autograd.backward([o, lse], [call.do, call.dlse])
    return ReferenceGradients(**{name: leaf.grad for name, leaf in leaves.items()})  # type: ignore[arg-type]


def assert_equal(found: ReferenceGradients, expected: ReferenceGradients) -> None:
    for name, gradient in vars(expected).items():
        torch.testing.assert_close(getattr(found, name), gradient, rtol=0, atol=0)


@EACH
def test_backward_gives_the_gradients(variant: Variant) -> None:
    """Autograd calls the backward kernels on the results of the forward kernels."""
    call = variant_call(variant)
    assert_near_truth(differentiated(call), call)


@EACH
def test_compiled_and_direct_calls_are_alike(variant: Variant) -> None:
    call = variant_call(variant)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    assert_equal(differentiated(call, compiled), differentiated(call))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_compute_again(use_reentrant: bool) -> None:
    call = variant_call(MIXED)

    def checkpointed(**given: Any) -> Any:
        names = list(given)
        run = lambda *values: attend(**dict(zip(names, values, strict=True)))  # noqa: E731
        return checkpoint(run, *given.values(), use_reentrant=use_reentrant)

    assert_equal(differentiated(call, checkpointed), differentiated(call))


def test_torch_finds_no_fault_in_the_differentiable_operator() -> None:
    for variant in (MIXED, Variant.from_name("causal+varlen")):
        call = variant_call(variant)
        keywords = dict(call.keywords)
        left, right = keywords.pop("window_size", (-1, -1))
        given = {"window_left": left, "window_right": right, "config": str(FORWARD)}
        leaves = leaves_of(call)
        tensors = tuple(leaves.pop(name) for name in "qkv")
        torch.library.opcheck(
            torch.ops.flashsmith.attention_forward, (*tensors, True), keywords | leaves | given
        )


@pytest.mark.parametrize("wanted", ["q", "k", "v", "sinks", "bias"])
def test_one_tensor_alone_may_ask_for_its_gradient(wanted: str) -> None:
    call = variant_call(MIXED)
    expected = differentiated(call)
    for function in (attend, torch.compile(attend, fullgraph=True, backend="aot_eager")):
        given = {"q": call.q, "k": call.k, "v": call.v, **call.keywords}
        leaf = given[wanted] = given[wanted].clone().requires_grad_()
        o, lse = function(**given)
        torch.autograd.backward([o, lse], [call.do, call.dlse])
        assert torch.equal(leaf.grad, getattr(expected, wanted))


def test_either_result_may_be_unused() -> None:
    call = variant_call(MIXED)
    for used, without in ((0, "dlse"), (1, "do")):
        leaves = leaves_of(call)
        results = attend(**call.keywords | leaves)
        results[used].backward((call.do, call.dlse)[used])
        found = ReferenceGradients(**{name: leaf.grad for name, leaf in leaves.items()})  # type: ignore[arg-type]
        zero = torch.zeros_like(getattr(call, without))
        assert_near_truth(found, Call(**vars(call) | {without: zero}))


def test_gradients_of_a_sum_are_those_of_ones() -> None:
    """The gradient of a sum arrives as one expanded element, with strides of 0."""
    call = variant_call(CAUSAL)
    one, other = leaves_of(call), leaves_of(call)
    attend(**call.keywords | one)[0].sum().backward()
    attend(**call.keywords | other)[0].backward(torch.ones_like(call.do))
    for name in "qkv":
        assert torch.equal(one[name].grad, other[name].grad)


def test_views_of_one_packed_tensor() -> None:
    packed = torch.randn(2, 70, 3, 2, 64).to(BF16).requires_grad_()
    o, _ = attend(*packed.unbind(2), causal=True)
    do = torch.randn(2, 2, 70, 64).to(BF16).transpose(1, 2)
    o.backward(do)
    q, k, v = (t.detach().contiguous() for t in packed.unbind(2))
    call = call_of(BF16, q.shape, k.shape, causal=True)
    call = Call(**vars(call) | {"q": q, "k": k, "v": v, "do": do})
    assert packed.grad is not None
    assert_near_truth(ReferenceGradients(*packed.grad.unbind(2)), call)


def test_rows_that_no_sequence_uses_have_zeros() -> None:
    used = torch.tensor([50, 0]).int()
    q, k, v = (torch.randn(2, 70, n, 64).to(BF16).requires_grad_() for n in (2, 1, 1))
    o, _ = attend(q, k, v, causal=True, seqused_q=used, seqused_k=used)
    o.sum().backward()
    for t in (q, k, v):
        assert t.grad is not None
        assert not t.grad[0, 50:].any() and not t.grad[1].any()
        assert t.grad[0, 1:50].any(-1).all()  # the first query sees one key alone


def test_a_graph_may_be_kept() -> None:
    call = variant_call(MIXED)
    leaves = leaves_of(call)
    results = attend(**call.keywords | leaves)
    once = torch.autograd.grad(results, [*leaves.values()], [call.do, call.dlse], retain_graph=True)
    again = torch.autograd.grad(results, [*leaves.values()], [call.do, call.dlse])
    assert all(map(torch.equal, once, again))


def test_functions_of_the_caller() -> None:
    def score_mod(score: Any, b: Any, h: Any, row: Any, key: Any) -> Any:
        return (score + 0.1 * score * score) * (1 + h) + 0.01 * (row - key)

    def mask_mod(b: Any, h: Any, row: Any, key: Any) -> Any:
        return (row // 20 == key // 25) | (key < 3)

    call = call_of(BF16, (1, 70, 2, 64), (1, 90, 1, 64), with_dlse=True,
                   score_mod=score_mod, mask_mod=mask_mod)  # fmt: skip
    assert_near_truth(differentiated(call), call)


# ---- where there is no gradient ----


def test_without_gradients_there_is_no_graph() -> None:
    call = variant_call(CAUSAL)
    leaves = leaves_of(call)
    with torch.no_grad():
        assert not any(t.requires_grad for t in attend(**call.keywords | leaves))
    with torch.inference_mode():
        assert not any(t.requires_grad for t in attend(**call.keywords | leaves))
    assert not any(t.requires_grad for t in attend(call.q, call.k, call.v))


def test_differentiating_twice_is_refused() -> None:
    call = variant_call(CAUSAL)
    leaves = leaves_of(call)
    o, _ = attend(**call.keywords | leaves)
    (gradient,) = torch.autograd.grad(o.float().square().sum(), leaves["q"], create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative of attention"):
        gradient.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=str)
@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_sinks_have_gradients_where_there_are_no_keys(packed: bool, dtype: torch.dtype) -> None:
    """The LSE of a row without keys is the logit of its sink."""
    q = torch.randn(*(() if packed else (2,)), 6, 4, 64).bfloat16().requires_grad_()
    k, v = (q[..., :0, :2, :].detach().clone().requires_grad_() for _ in range(2))
    sinks = torch.tensor([0.5, -2.0, 20.0, 0.0], dtype=dtype, requires_grad=True)
    lengths = {}
    if packed:
        places = torch.tensor([0, 4, 6]).int()
        lengths = {"cu_seqlens_q": places, "cu_seqlens_k": torch.zeros_like(places)}
    o, lse = flashsmith.attention(q, k, v, sinks=sinks, return_lse=True, **lengths)
    assert not o.any()
    dlse = torch.randint(-8, 8, lse.shape).float()
    torch.autograd.backward([o, lse], [torch.randn_like(o), dlse])
    expected = dlse.sum(-1) if packed else dlse.sum((0, 2))
    assert sinks.grad is not None and sinks.grad.equal(expected.to(dtype))
    assert q.grad is not None and not q.grad.any()
    assert k.grad is not None and v.grad is not None and k.grad.shape == k.shape


@pytest.mark.parametrize("keys", [0, 5])
@pytest.mark.parametrize("packed", [False, True], ids=["used", "packed"])
def test_rows_of_no_sequence_have_no_sink(packed: bool, keys: int) -> None:
    """A query behind `seqused_q` has an LSE of -inf, so it adds nothing to the gradient of the
    sink, with keys or without."""
    q = torch.randn(*(() if packed else (2,)), 8, 2, 64).bfloat16()
    k, v = (torch.randn(*q.shape[:-3], keys, 2, 64).bfloat16() for _ in range(2))
    sinks = torch.tensor([0.5, -torch.inf], requires_grad=True)
    if packed:
        offsets, used = torch.tensor([1, 4, 7]).int(), torch.tensor([3, 1]).int()
        lengths = {"cu_seqlens_q": offsets, "seqused_q": used}
        lengths["cu_seqlens_k"] = torch.tensor([0, keys // 2, keys]).int()
        is_used = torch.tensor([0, 1, 1, 1, 1, 0, 0, 0]).bool().expand(2, 8)
    else:
        lengths = {"seqused_q": torch.tensor([3, 8]).int()}
        is_used = (torch.arange(8) < torch.tensor([[3], [8]]))[:, None].expand(2, 2, 8)
    o, lse = flashsmith.attention(q, k, v, sinks=sinks, return_lse=True, **lengths)
    assert (lse[~is_used] == -torch.inf).all()
    if keys == 0:
        assert not o.any()
        assert torch.equal(lse[is_used], sinks.detach()[:, None].expand_as(lse)[is_used])
    dlse = torch.randn_like(lse)
    (found,) = torch.autograd.grad(lse, sinks, dlse, retain_graph=True)
    (again,) = torch.autograd.grad(lse, sinks, dlse.where(is_used, 1e3))
    assert torch.equal(found, again) and found[1] == 0


@pytest.mark.parametrize("name", ["q", "k", "v", "sinks", "bias", "o"])
def test_what_changes_before_the_backward_is_noticed(name: str) -> None:
    call = variant_call(MIXED)
    leaves = leaves_of(call)
    given = {n: leaf * 1 for n, leaf in leaves.items()}
    o, lse = attend(**call.keywords | given)
    with torch.no_grad():
        (o if name == "o" else given[name]).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        lse.sum().backward()


@pytest.mark.parametrize("compiled", [False, True])
def test_what_has_no_gradient_is_refused(compiled: bool) -> None:
    call = variant_call(Variant.from_name("softcap+alibi+varlen"))
    function = torch.compile(attend, backend="aot_eager") if compiled else attend
    slopes = call.keywords["alibi_slopes"].clone().requires_grad_()
    given = {"q": call.q, "k": call.k, "v": call.v, **call.keywords, "alibi_slopes": slopes}
    with pytest.raises(NotImplementedError, match="alibi_slopes requires a gradient"):
        function(**given)
    with torch.no_grad():
        function(**given)
    leaves = leaves_of(call)
    with pytest.raises(ValueError, match="out is a tensor; a result that needs a gradient"):
        flashsmith.attention(**call.keywords | leaves, out=torch.empty_like(call.o))
    with pytest.raises(NotImplementedError, match="k requires a gradient"):
        flashsmith.forward(FORWARD, **call.keywords | {"q": call.q, "k": leaves["k"], "v": call.v})
