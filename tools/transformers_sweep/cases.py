"""The cases that a model is called on, and the comparison of flashsmith's with eager attention."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
import transformers

from flashsmith.integrations import heads
from flashsmith.ops.decode_call import DecodeCall, DecodeOptions
from tools.transformers_sweep.inputs import (
    BATCH,
    LENGTH,
    Arguments,
    own_mask,
    packed_positions,
    padded,
    padding,
    parameters_of,
    patches_seen,
)
from tools.transformers_sweep.reference import by_reference, decode_by_reference

# Relative to the largest element: the error of float32 through a few layers.
TOLERANCE = 2e-4
# The largest ratio of errors to those of eager attention in bfloat16.
RATIO = 2.5
_PROMPT = 5
# Fields of results that are not compared.
_LEFT_OUT = ("past", "cache", "attentions")

Tensors = list[torch.Tensor]
Ask = Callable[[Any], Tensors]


@contextlib.contextmanager
def attention_by_reference(wrong: bool = False) -> Iterator[list[int]]:
    """Makes the integrations compute in plain torch, or wrongly; the list grows with each call."""
    calls: list[int] = []

    def told(o: torch.Tensor) -> torch.Tensor:
        return o * torch.linspace(0.5, 1.5, o.shape[-1]).to(o.dtype) if wrong else o

    def attention(*tensors: torch.Tensor, **keywords: Any) -> torch.Tensor:
        calls.append(tensors[0].shape[1])
        return told(by_reference(*tensors, **keywords))

    def run_decode(asked: DecodeOptions, call: DecodeCall) -> tuple[torch.Tensor, None, float]:
        calls.append(call.q.shape[1])
        return told(decode_by_reference(asked, call)[0]), None, 0.0

    with patch.multiple(heads, attention=attention, run_decode=run_decode):
        yield calls


def cases(model: Any, arguments: Arguments) -> dict[str, Ask]:
    """Returns the cases by name. Arguments are what the model takes, without any mask."""
    found: dict[str, Ask] = {"no mask": _ask(arguments)}
    parameters = parameters_of(model)
    text = arguments.get("input_ids", arguments.get("inputs_embeds"))
    is_text = isinstance(text, torch.Tensor) and text.shape[:2] == (BATCH, LENGTH)
    if is_text and "attention_mask" in parameters:
        for kind in ("right", "left", "gaps"):
            mask = padding(kind)
            found[kind] = _ask(padded(arguments, mask), mask)
        found["4-D"] = _ask(arguments | {"attention_mask": own_mask(torch.float32)})
        found["gradients"] = _gradients(padded(arguments, mask), mask)
    else:
        found["gradients"] = _gradients(arguments)
    if is_text and "decoder_attention_mask" in parameters and "decoder_input_ids" in arguments:
        mask = padding("right")[:, : arguments["decoder_input_ids"].shape[1]]
        found["decoder"] = _ask(arguments | {"decoder_attention_mask": mask}, mask)
    if "patch_attention_mask" in parameters and "pixel_values" in arguments:
        seen = patches_seen(model, arguments["pixel_values"])
        counts = seen.flatten(1).int()
        found["patches"] = _ask(arguments | {"patch_attention_mask": seen}, counts)
    if is_text and "position_ids" in parameters:
        packed = arguments | {"position_ids": packed_positions()}
        found["packed"] = _ask(packed | ({"use_cache": False} if _has_cache(model) else {}))
    if is_text and _has_cache(model) and "attention_mask" in parameters:
        for kind in ("dynamic", "static"):
            found[kind] = _steps(arguments, kind)
    return found


def _has_cache(model: Any) -> bool:
    return {"past_key_values", "use_cache"} <= parameters_of(model).keys()


def _ask(arguments: Arguments, counts: torch.Tensor | None = None) -> Ask:
    def ask(model: Any) -> Tensors:
        torch.manual_seed(0)
        with torch.no_grad():
            return _counted(_tensors(model(**_in_dtype(model, arguments))), counts)

    return ask


def _gradients(arguments: Arguments, counts: torch.Tensor | None = None) -> Ask:
    """Returns a case that computes the parameters' gradients of a random weighting of outputs."""

    def ask(model: Any) -> Tensors:
        torch.manual_seed(0)
        model.zero_grad()
        results = _counted(_tensors(model(**_in_dtype(model, arguments))), counts)
        generator = torch.Generator().manual_seed(1)
        loss = sum(
            (t.float() * torch.randn(t.shape, generator=generator)).mean()
            for t in results
            if t.requires_grad
        )
        loss.backward()  # type: ignore[union-attr]
        return [p.grad for p in model.parameters() if p.grad is not None]

    return ask


def _steps(arguments: Arguments, kind: str) -> Ask:
    """Returns a case of a prompt, padded on the left, and then one token after the other."""

    def ask(model: Any) -> Tensors:
        torch.manual_seed(0)
        cache = _cache(model, kind)
        results, begin = [], 0
        for end in (_PROMPT, *range(_PROMPT + 1, LENGTH + 1)):
            part = {
                name: t[:, begin:end] if _is_by_token(t) else t for name, t in arguments.items()
            }
            if "decoder_input_ids" in arguments:
                part = arguments | {"decoder_input_ids": arguments["input_ids"][:, begin:end]}
            else:
                part |= {"attention_mask": padding("left")[:, :end]}
            part |= {"past_key_values": cache, "use_cache": True}
            with torch.no_grad():
                tensors = _tensors(model(**_in_dtype(model, part)))[:1]
            counts = padding("left")[:, begin:end]
            skips = "decoder_input_ids" in arguments
            results += tensors if skips else [_where(t, counts) for t in tensors]
            begin = end
        return results

    return ask


def _is_by_token(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.shape[:2] == (BATCH, LENGTH)


def _cache(model: Any, kind: str) -> Any:
    config = model.config.get_text_config(decoder=True)
    if kind == "dynamic":
        own: Any = transformers.DynamicCache(config=config)
        other: Any = transformers.DynamicCache(config=config)
    else:
        own = transformers.StaticCache(config=config, max_cache_len=LENGTH + 3)
        other = transformers.StaticCache(config=config, max_cache_len=LENGTH)
    if getattr(model.config, "is_encoder_decoder", False):
        return transformers.EncoderDecoderCache(own, other)
    return own


def _in_dtype(model: Any, arguments: Arguments) -> Arguments:
    return {
        name: t.to(model.dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t
        for name, t in arguments.items()
    }


def _tensors(output: Any) -> Tensors:
    """Returns all floating-point tensors of a result except caches and attention weights."""
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, dict):
        values = [v for name, v in output.items() if not any(word in name for word in _LEFT_OUT)]
        return [t for value in values for t in _tensors(value)]
    if isinstance(output, list | tuple):
        return [t for value in output for t in _tensors(value)]
    return []


def _counted(tensors: Tensors, counts: torch.Tensor | None) -> Tensors:
    return tensors if counts is None else [_where(t, counts) for t in tensors]


def _where(t: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Returns ``t`` with zeros at padding, if it is over tokens or over one element more."""
    if t.ndim < 2 or t.shape[0] != counts.shape[0]:
        return t
    more = t.shape[1] - counts.shape[1]
    if more not in (0, 1):
        return t
    counts = torch.nn.functional.pad(counts, (0, more), value=1)
    return t * counts.view(*counts.shape, *(1,) * (t.ndim - 2)).to(t.dtype)


def difference(found: Tensors, expected: Tensors) -> float:
    """Returns the largest difference, relative to the largest element of its tensor. NaN where only
    one side has it gives NaN."""
    if [t.shape for t in found] != [t.shape for t in expected]:
        raise AssertionError("the results have other shapes than those of eager attention")
    size = max((float(t.abs().nan_to_num(0, 0, 0).max()) for t in expected if t.numel()), default=0)
    return max(
        (_difference(a, b, size) for a, b in zip(found, expected, strict=True) if b.numel()),
        default=0.0,
    )


def _difference(a: torch.Tensor, b: torch.Tensor, size: float) -> float:
    same = a == b
    both = (a - b).abs().masked_fill(same, 0)
    of = max(float(b.abs().nan_to_num(0, 0, 0).max()), 1e-3 * size, 1e-30)
    return float(both.masked_fill(a.isnan() & b.isnan(), 0).max()) / of
