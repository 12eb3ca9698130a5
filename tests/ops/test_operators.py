"""The operators: torch's own checks of them, compiled and exported graphs, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import flashsmith
import flashsmith.flash_attn as flash
from flashsmith.configs import get_kernel_progression_configs
from flashsmith.integrations.sdpa import scaled_dot_product_attention
from flashsmith.ops import operators
from flashsmith.ops.attention import attention
from support.attention import attention_by_reference, replace_attention

CONFIG = get_kernel_progression_configs()[0]
CU = torch.tensor([0, 3, 3, 10], dtype=torch.int32)
OPERATORS = torch.ops.flashsmith


@pytest.fixture(autouse=True)
def _by_reference_in_fresh_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    replace_attention(monkeypatch, attention_by_reference)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


def dense(length: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return random(2, length, 4, 16), random(2, 7, 2, 16), random(2, 7, 2, 24)


PACKED = (random(10, 4, 16), random(10, 2, 16), random(10, 2, 16))
KEYWORDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lse": {"return_lse": True},
    "causal window": {"causal": True, "window_left": 2, "window_right": 1},
    "alibi, sinks": {"alibi_slopes": torch.rand(4), "sinks": torch.rand(4), "softcap": 3.0},
    "bias": {"bias": random(1, 4, 1, 7), "softmax_scale": 0.3, "top_left": True},
    "seqused": {"seqused_k": torch.tensor([3, 0], dtype=torch.int32), "return_lse": True},
}
PACKED_KEYWORDS = {
    "cu_seqlens_q": CU, "cu_seqlens_k": CU, "max_seqlen_q": 7, "max_seqlen_k": 7,
    "return_lse": True,
}  # fmt: skip


@pytest.mark.parametrize("keywords", KEYWORDS)
def test_torch_finds_no_fault_in_the_operators(keywords: str) -> None:
    """The checks cover the schema, mutation and aliases, fake tensors, and dispatch through
    autograd."""
    q, k, v = dense()
    torch.library.opcheck(OPERATORS.attention_forward, (q, k, v), KEYWORDS[keywords])
    out = torch.empty(2, 5, 4, 24).half()
    torch.library.opcheck(OPERATORS.attention_forward_out, (q, k, v, out), KEYWORDS[keywords])


def test_torch_finds_no_fault_in_packed_attention() -> None:
    torch.library.opcheck(OPERATORS.attention_forward, PACKED, PACKED_KEYWORDS)
    arguments = (*PACKED, torch.empty(10, 4, 16).half())
    torch.library.opcheck(OPERATORS.attention_forward_out, arguments, PACKED_KEYWORDS)


def test_compiled_and_direct_calls_are_alike() -> None:
    """The test passes every argument of the operator's schema."""
    q, k, v = dense()
    keywords: dict[str, Any] = {
        "causal": True, "softmax_scale": 0.3, "window_size": (3, 0), "softcap": 2.0,
        "alibi_slopes": torch.rand(2, 4), "sinks": torch.rand(4), "bias": random(2, 1, 5, 7),
        "top_left": True, "seqused_q": torch.tensor([5, 2], dtype=torch.int32),
        "seqused_k": torch.tensor([7, 3], dtype=torch.int32), "return_lse": True,
    }  # fmt: skip

    def call(*tensors: torch.Tensor) -> Any:
        return attention(*tensors, **keywords)

    direct, compiled = call(q, k, v), torch.compile(call, fullgraph=True, backend="aot_eager")
    for found, expected in zip(compiled(q, k, v), direct, strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_compiled_calls_keep_their_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = []

    def recorded(*tensors: torch.Tensor, config: Any, **keywords: Any) -> Any:
        configs.append(config)
        return attention_by_reference(*tensors, **keywords)

    replace_attention(monkeypatch, recorded)
    function = torch.compile(lambda q: attention(q, q, q, config=CONFIG), backend="aot_eager")
    function(random(1, 3, 2, 16))
    function(random(1, 3, 2, 16))
    assert configs[0] == CONFIG and configs[0] is configs[1]


def test_lengths_do_not_compile_again() -> None:
    """One compilation is for the first length, and one serves all other lengths."""
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counter)
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flash.flash_attn_func(q, k, v, causal=True, window_size=(2, 0))

    for length in (5, 6, 7, 11, 64):
        q, k, _ = dense(length)
        expected = flash.flash_attn_func(q, k, k, causal=True, window_size=(2, 0))
        assert torch.equal(function(q, k, k), expected)
    assert counter.frame_count == 2
    assert counter.op_count == 2 * counter.frame_count  # the operator, and the access to o


def test_packed_lengths_do_not_compile_again() -> None:
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counter)
    def function(q: torch.Tensor, k: torch.Tensor, cu: torch.Tensor, longest: int) -> Any:
        return flash.flash_attn_varlen_func(q, k, k, cu, cu, longest, longest, causal=True)

    for lengths in ([3, 7], [4, 9], [20, 1], [6, 6]):
        cu = torch.tensor([0, *lengths]).cumsum(0).int()
        q, k = random(sum(lengths), 4, 16), random(sum(lengths), 2, 16)
        arguments = (q, k, k, cu, cu, max(lengths), max(lengths))
        expected = flash.flash_attn_varlen_func(*arguments, causal=True)
        assert torch.equal(function(q, k, cu, max(lengths)), expected)
    assert counter.frame_count == 2


def test_a_compiled_call_writes_into_out() -> None:
    q, k, v = dense()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> Any:
        return attention(q, k, v, out=out, return_lse=True)

    out = torch.zeros(2, 5, 4, 24).half()
    result, lse = function(q, k, v, out)
    expected = attention(q, k, v, return_lse=True)
    assert torch.equal(out, expected[0]) and torch.equal(result, out)
    assert torch.equal(lse, expected[1])


def test_exported_programs_take_other_lengths() -> None:
    class Attention(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    q = random(2, 4, 8, 16)
    length = torch.export.Dim("length", min=2, max=4096)
    shapes = ({2: length},) * 3
    program = torch.export.export(Attention(), (q, q, q), dynamic_shapes=shapes)
    assert "flashsmith.attention_forward" in str(program.graph)
    for n in (3, 17):
        q = random(2, 4, n, 16)
        expected = scaled_dot_product_attention(q, q, q, is_causal=True)
        assert torch.equal(program.module()(q, q, q), expected)


def test_fake_tensors_have_the_shapes_of_results() -> None:
    with torch._subclasses.FakeTensorMode():
        q, k = torch.empty(2, 5, 4, 16).half(), torch.empty(2, 7, 2, 16).half()
        o, lse = attention(q, k, torch.empty(2, 7, 2, 24).half(), return_lse=True)
        assert o.shape == (2, 5, 4, 24) and o.dtype == torch.float16
        assert lse.shape == (2, 4, 5) and lse.dtype == torch.float32
        packed, cu = torch.empty(10, 4, 16).half(), torch.empty(3, dtype=torch.int32)
        _, lse = attention(packed, packed, packed, cu_seqlens_q=cu, return_lse=True)
        assert lse.shape == (4, 10)


def test_calls_that_nothing_traces_do_not_pass_through_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A torch operator would take more time than the rest of the call on the host."""
    monkeypatch.delattr(operators, "_call")
    monkeypatch.setattr(OPERATORS, "attention_forward", None)
    q, k, v = dense()
    assert attention(q, k, v).shape == (2, 5, 4, 24)


def test_attention_is_one_operator_of_a_whole_graph() -> None:
    """This holds for the public function, too, and not only for those of other libraries."""
    counter = CompileCounterWithBackend("aot_eager")
    q, k, v = dense()
    options: list[dict[str, Any]] = [{}, {"causal": True, "window_size": (2, 0), "softcap": 3.0}]
    for given in options:
        compiled = torch.compile(
            lambda *t, g=given: flashsmith.attention(*t, **g), fullgraph=True, backend=counter
        )
        assert torch.equal(compiled(q, k, v), flashsmith.attention(q, k, v, **given))
    assert counter.frame_count == len(options)


def test_a_score_mod_is_called_outside_of_the_graph() -> None:
    """The kernel of a function is built when the function is first seen, which cannot be in a
    graph."""
    q, k, v = dense()
    compiled = torch.compile(
        lambda *t: flashsmith.attention(*t, score_mod=lambda s, b, h, i, j: s * 2) + 1,
        backend="aot_eager",
    )
    expected = flashsmith.attention(q, k, v, softmax_scale=2 * 16**-0.5) + 1
    torch.testing.assert_close(compiled(q, k, v), expected)


def operator(q: torch.Tensor, **keywords: Any) -> torch.Tensor:
    o, _ = torch.ops.flashsmith.attention_forward(q, q, q, True, **keywords)
    return o  # type: ignore[no-any-return]


def test_a_call_without_gradients_passes_through_torch_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    q, *_ = dense()
    expected = attention(q, q, q)

    def again(call: object) -> None:
        pytest.fail("the dispatcher was asked a second time")

    monkeypatch.setattr(operators._BelowAutograd, "__call__", again)
    assert torch.equal(operator(q), expected)
    learned = q.clone().requires_grad_()
    with torch.no_grad():
        assert torch.equal(operator(learned), expected)


def test_a_mode_sees_the_operators_of_a_step() -> None:
    q = dense()[0].requires_grad_()
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        operator(q).sum().backward()
    library = torch.ops.flashsmith
    assert library.attention_forward.default in seen
    assert library.attention_backward.default in seen


@pytest.mark.parametrize("name", ["alibi_slopes", "seqused_k", "mod_tensors"])
def test_a_gradient_that_is_not_computed_is_refused(name: str) -> None:
    q, *_ = dense()
    asked = torch.ones(q.shape[2], requires_grad=True)
    given: Any = [asked] if name == "mod_tensors" else asked
    with pytest.raises(NotImplementedError, match=f"{name}.* requires a gradient"):
        operator(q, **{name: given})


def test_a_second_derivative_of_the_operators_is_refused() -> None:
    q = dense()[0].requires_grad_()
    (dq,) = torch.autograd.grad(operator(q).float().square().sum(), q, create_graph=True)
    assert dq.requires_grad
    with pytest.raises(NotImplementedError, match="second derivative"):
        dq.sum().backward()


def test_tensors_without_memory_have_the_shapes_of_results() -> None:
    q = dense()[0].to("meta")
    o, lse = OPERATORS.attention_forward(q, q, q, True)
    assert (o.device.type, lse.device.type) == ("meta", "meta")
    assert (o.shape, lse.shape) == (q.shape, (2, 4, 5))


def test_a_gradient_that_is_zero_without_memory_gives_zeros() -> None:
    """Autograd passes such a tensor where nothing depends on a result."""
    q = dense()[0].requires_grad_()
    zero = torch._efficientzerotensor(*q.shape, dtype=q.dtype)
    (dq,) = torch.autograd.grad(operator(q), q, zero)
    assert torch.equal(dq, torch.zeros_like(q))
