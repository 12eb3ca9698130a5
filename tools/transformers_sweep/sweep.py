"""Sweeps one class: builds a tiny model, and runs each case with both kinds of attention."""

from __future__ import annotations

import copy
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from flashsmith.integrations.transformers import register
from tools.transformers_sweep.cases import (
    RATIO,
    TOLERANCE,
    Ask,
    Tensors,
    attention_by_reference,
    cases,
    difference,
)
from tools.transformers_sweep.classes import attention_layers, family_of
from tools.transformers_sweep.inputs import Arguments, candidates
from tools.transformers_sweep.tiny import tiny_config

AGREES, DIFFERS, REFUSED, FAILS = "agrees", "differs", "refused", "fails"
_MAX_PARAMETERS = 80_000_000


# The results of these cases include values at padding, which are 0 with flashsmith and arbitrary
# with eager attention.
_OF_PADDING = {
    "BltPatcher": {"dynamic": "has a cache that it does not fill, and sees padding alone"},
    "PeAudioModel": {"left": "its text tower gives what stands at the first place"},
    "PeAudioFrameLevelModel": {"left": "its text tower gives what stands at the first place"},
    "DiffusionGemmaModel": dict.fromkeys(
        ("right", "left"), "its decoder, with no mask of its own, sees keys of padding"
    ),
}


@dataclass
class Row:
    """The result of a class.

    Attributes:
        result: agrees, differs, refused (with flashsmith's error), fails; "as ..." if all its
            attention is in a model that has a row; or "cannot: ..." if eager attention cannot run
            either.
        cases: By name: agrees, differs, refused, fails, or why eager attention does not take it,
            or why it is left out.
    """

    family: str
    name: str
    result: str = ""
    worst: float = 0.0
    cases: dict[str, str] = field(default_factory=dict)
    note: str = ""


def sweep(model_class: Any, swept: set[type]) -> Row:
    """Runs all cases of one class; ``swept`` are the classes that have rows."""
    row = Row(family_of(model_class), model_class.__name__)
    try:
        model = _built(model_class)
    except Exception as error:
        row.result, row.note = "cannot: is not built", _words(error)
        return row
    layers = attention_layers(model)
    if not layers:
        row.result = "cannot: has no layer of attention"
        return row
    for part in model.modules():
        if part is not model and type(part) in swept and set(layers) <= set(part.modules()):
            row.result = f"as {type(part).__name__}"
            return row
    arguments = _arguments(model, row)
    if arguments is None:
        row.result = "cannot: no arguments are found"
        return row
    _ask_all(model, arguments, row)
    return row


def _built(model_class: Any) -> Any:
    config = tiny_config(model_class.config_class)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        count = sum(p.numel() for p in model_class(copy.deepcopy(config)).parameters())
    if count > _MAX_PARAMETERS:
        raise ValueError(f"{count} parameters")
    torch.manual_seed(0)
    model = model_class(config).eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "sink" in name:
                parameter.normal_(0, 2)
            elif parameter.ndim == 2:
                parameter.normal_(0, parameter.shape[1] ** -0.5 * 1.5)
    return model


def _arguments(model: Any, row: Row) -> Arguments | None:
    """Returns the first arguments that eager attention takes; None if there are none."""
    try:
        for arguments in candidates(model):
            try:
                with torch.no_grad():
                    model(**arguments)
                return arguments
            except Exception as error:
                row.note = _words(error)
    except LookupError as error:
        row.note = str(error)
    return None


def _ask_all(model: Any, arguments: Arguments, row: Row) -> None:
    name = register()
    asks = cases(model, arguments)
    for case, why in _OF_PADDING.get(row.name, {}).items():
        asks.pop(case, None)
        row.cases[case] = f"left out: {why}"
    eager: dict[str, Tensors] = {}
    for case, ask in asks.items():
        try:
            eager[case] = ask(model)
        except Exception as error:
            row.cases[case] = f"eager: {_words(error)}"
    row.note = ""
    try:
        model.set_attn_implementation(name)
    except Exception as error:
        row.result, row.note = "cannot: refused by transformers", _words(error)
        return
    with attention_by_reference() as calls:
        for case, expected in eager.items():
            row.cases[case] = _outcome(lambda ask=asks[case]: ask(model), expected, row)
        row.cases["bf16"] = _in_bfloat16(model, asks["no mask"], eager["no mask"], name, row)
    outcomes = set(row.cases.values())
    ranked = (FAILS, DIFFERS, REFUSED, AGREES)
    row.result = next(result for result in ranked if result in outcomes)
    if row.result in (DIFFERS, AGREES) and (why := _says_nothing(model, asks, eager, name, calls)):
        row.result = f"cannot: {why}"


def _says_nothing(model: Any, asks: Any, eager: Any, name: str, calls: list[int]) -> str | None:
    """Returns why agreement or a difference would say nothing about attention; None if it would."""
    if not calls:
        return "attention is not asked"
    case = next(iter(eager))
    model.set_attn_implementation("eager")
    if difference(asks[case](model), eager[case]) > TOLERANCE:
        return "eager attention differs from itself"
    model.set_attn_implementation(name)
    with attention_by_reference(wrong=True):
        change = difference(asks[case](model), eager[case])
    return None if change > 10 * TOLERANCE else f"wrong attention changes {change:.0e}"


def _outcome(ask: Any, expected: Tensors, row: Row) -> str:
    try:
        error = difference(ask(), expected)
    except Exception as problem:
        row.note = row.note or _words(problem)
        return REFUSED if _is_ours(problem) else FAILS
    row.worst = max(row.worst, error) if error == error else error
    return AGREES if error <= TOLERANCE else DIFFERS


def _in_bfloat16(model: Any, ask: Ask, exact: Tensors, name: str, row: Row) -> str:
    """Compares mean errors in bfloat16 with those of eager attention in the same dtype."""
    try:
        model = copy.deepcopy(model).to(torch.bfloat16)
        model.set_attn_implementation("eager")
        own = ask(model)
    except Exception as error:
        return f"eager: {_words(error)}"
    try:
        model.set_attn_implementation(name)
        ours = ask(model)
    except Exception as problem:
        row.note = row.note or _words(problem)
        return REFUSED if _is_ours(problem) else FAILS
    errors = [sum(_mean(a, b) for a, b in zip(each, exact, strict=True)) for each in (ours, own)]
    return AGREES if errors[0] <= RATIO * errors[1] + 1e-3 else DIFFERS


def _mean(a: torch.Tensor, b: torch.Tensor) -> float:
    if not b.numel():
        return 0.0
    size = float(b.abs().mean()) or 1.0
    return float((a.float() - b).abs().nan_to_num(0).mean()) / size


def _is_ours(problem: BaseException) -> bool:
    """Returns whether flashsmith raised it, as an error for callers."""
    frames = traceback.extract_tb(problem.__traceback__)
    ours = "flashsmith" in Path(frames[-1].filename).parts
    return ours and isinstance(problem, ValueError | TypeError | NotImplementedError)


def _words(problem: BaseException) -> str:
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text}"[:200]
