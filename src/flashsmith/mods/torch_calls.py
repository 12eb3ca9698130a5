"""torch's functions on traced values: what each adds to the expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from flashsmith.mods.operations import CONVERSIONS, LIMITS, OPERATIONS, Kind
from flashsmith.mods.proxy import Proxy

if TYPE_CHECKING:
    from flashsmith.mods.tracer import Tracer

_KINDS = {torch.float32: Kind.FLOAT, torch.int32: Kind.INT, torch.bool: Kind.BOOL}

# Synonyms of operations.
_ALIASES = {
    "absolute": "abs",
    "arccos": "acos",
    "arcsin": "asin",
    "arctan": "atan",
    "arctan2": "atan2",
    "expit": "sigmoid",
    "fix": "trunc",
    "floordiv": "floor_divide",
    "less": "lt",
    "less_equal": "le",
    "negative": "neg",
    "not_equal": "ne",
    "sgn": "sign",
}
# Python's names of operators, which are called when a captured tensor is the left operand.
_OPERATORS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
# Functions that make a tensor from numbers; a tensor without dimensions is a constant.
_FACTORIES = (
    "tensor",
    "scalar_tensor",
    "full",
    "ones",
    "zeros",
    "new_tensor",
    "new_full",
    "new_ones",
    "new_zeros",
)
_RANDOM = (
    "rand",
    "randn",
    "randint",
    "rand_like",
    "randn_like",
    "randint_like",
    "bernoulli",
    "normal",
    "multinomial",
)

Call = Callable[..., Any]


def constant_of(
    tracer: Tracer, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Makes a call without traced values and returns its result: a constant if it makes one
    number."""
    if name in _RANDOM:
        tracer.refuse(f"torch's {name!r} draws anew at every call; capture a tensor instead")
    if name not in _FACTORIES:
        return func(*args, **kwargs)
    made = func(*args, **kwargs)
    if made.dim():
        return made
    return Proxy(tracer, tracer.graph.constant(made.item()))


def _kind(tracer: Tracer, value: Any) -> Kind:
    return tracer.graph.kind(tracer.place(value))


def _are_bools(tracer: Tracer, *values: Any) -> bool:
    return all(_kind(tracer, value) is Kind.BOOL for value in values)


def _operation(name: str) -> Call:
    def call(tracer: Tracer, *operands: Any) -> Proxy:
        if len(operands) != OPERATIONS[name].arity:
            raise TypeError(f"got {len(operands)} values, expected {OPERATIONS[name].arity}")
        return tracer.apply(name, *operands)

    return call


def _of_floats(name: str) -> Call:
    def call(tracer: Tracer, x: Any) -> Proxy:
        whole = _kind(tracer, x) is not Kind.FLOAT
        return Proxy(tracer, tracer.place(x)) if whole else tracer.apply(name, x)

    return call


def _add(tracer: Tracer, a: Any, b: Any) -> Proxy:
    return tracer.apply("bitwise_or" if _are_bools(tracer, a, b) else "add", a, b)


def _mul(tracer: Tracer, a: Any, b: Any) -> Proxy:
    return tracer.apply("bitwise_and" if _are_bools(tracer, a, b) else "mul", a, b)


def _sub(tracer: Tracer, a: Any, b: Any) -> Proxy:
    if Kind.BOOL in (_kind(tracer, a), _kind(tracer, b)):
        raise ValueError("bools are not subtracted; use ^ or ~, or .int()")
    return tracer.apply("sub", a, b)


def _neg(tracer: Tracer, x: Any) -> Proxy:
    if _are_bools(tracer, x):
        raise ValueError("a bool has no negative; use ~")
    return tracer.apply("neg", x)


def _div(tracer: Tracer, a: Any, b: Any, *, rounding_mode: str | None = None) -> Proxy:
    if rounding_mode == "floor":
        return tracer.apply("floor_divide", a, b)
    if rounding_mode is not None:
        raise ValueError(f"rounding_mode is {rounding_mode!r}; supported are None and 'floor'")
    return tracer.apply("div", a, b)


def _pow(tracer: Tracer, base: Any, exponent: Any) -> Proxy:
    if not isinstance(exponent, int | float):
        return tracer.apply("pow", base, exponent)
    if isinstance(exponent, float):
        base = tracer.apply("to_float", base)
    elif exponent < 0 and _kind(tracer, base) is not Kind.FLOAT:
        raise ValueError("an integer has no negative power; use .float()")
    # This is far cheaper than the power.
    if exponent == 2:
        return tracer.apply("mul", base, base)
    return tracer.apply("sqrt", base) if exponent == 0.5 else tracer.apply("pow", base, exponent)


def _of_two(name: str) -> Call:
    return lambda tracer, a, b: tracer.apply(name, a, b)


def _clamp(tracer: Tracer, x: Any, min: Any = None, max: Any = None) -> Proxy:  # noqa: A002
    if min is None and max is None:
        raise ValueError("at least one of min and max is needed")
    if min is not None:
        x = _limit(tracer, "clamp_min", x, min)
    return x if max is None else _limit(tracer, "clamp_max", x, max)


def _limit(tracer: Tracer, name: str, x: Any, limit: Any) -> Proxy:
    if Kind.FLOAT not in (_kind(tracer, x), _kind(tracer, limit)):
        name = LIMITS[name]
    return tracer.apply(name, x, limit)


def _relu(tracer: Tracer, x: Any, inplace: bool = False) -> Proxy:
    _refuse_in_place(inplace)
    return _limit(tracer, "clamp_min", 0, x)  # at zero its derivative is 0, not 1


def _silu(tracer: Tracer, x: Any, inplace: bool = False) -> Proxy:
    _refuse_in_place(inplace)
    return tracer.apply("mul", x, tracer.apply("sigmoid", x))


def _refuse_in_place(inplace: bool) -> None:
    if inplace:
        raise ValueError("nothing is changed in place; leave inplace out")


def _logical(name: str) -> Call:
    def call(tracer: Tracer, *values: Any) -> Proxy:
        return tracer.apply(name, *(tracer.apply("to_bool", value) for value in values))

    return call


def _where(tracer: Tracer, condition: Any, yes: Any, no: Any) -> Proxy:
    places = (tracer.place(value) for value in (condition, yes, no))
    return Proxy(tracer, tracer.graph.where(*places))


def _isfinite(tracer: Tracer, x: Any) -> Proxy:
    unlike = tracer.apply("bitwise_or", tracer.apply("isnan", x), tracer.apply("isinf", x))
    return tracer.apply("bitwise_not", unlike)


def _convert(tracer: Tracer, x: Any, dtype: torch.dtype) -> Proxy:
    if dtype not in _KINDS:
        raise ValueError(
            f"a traced value cannot be {dtype}: values are float32, int32 or bool; use .float(), "
            ".int() or .bool()"
        )
    return tracer.apply(CONVERSIONS[_KINDS[dtype]], x)


def _to(tracer: Tracer, x: Any, *args: Any, dtype: Any = None, **_: Any) -> Any:
    """Converts to a dtype and ignores a device: values are on the kernel's device."""
    for arg in (dtype, *args):
        if isinstance(arg, Proxy | torch.Tensor):
            arg = arg.dtype
        if isinstance(arg, torch.dtype):
            return _convert(tracer, x, arg)
    return x


def _converter(dtype: torch.dtype) -> Call:
    return lambda tracer, x: _convert(tracer, x, dtype)


def _filled(value: bool | int | float | None) -> Call:
    """Returns the function for new_ones, ones_like and similar; None: the value is an argument."""

    def call(tracer: Tracer, x: Any, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        fill = value
        size = [arg for arg in (*args, kwargs.get("size")) if isinstance(arg, tuple | list)]
        if any(map(len, size)):
            raise ValueError(f"makes a tensor of shape {tuple(size[0])}; values have no dimensions")
        if fill is None:
            rest = [arg for arg in args if not isinstance(arg, tuple | list)]
            fill = kwargs["fill_value"] if "fill_value" in kwargs else rest[0]
        return _convert(tracer, fill, dtype or Proxy(tracer, tracer.place(x)).dtype)

    return call


def _identity(_tracer: Tracer, x: Any, *_: Any, **__: Any) -> Any:
    return x


def _item(tracer: Tracer, x: Any) -> Any:
    return float(x)


def _calls() -> dict[str, Call]:
    """Returns the functions by the names of torch's functions and tensors' methods."""
    calls: dict[str, Call] = {
        name: _operation(name) for name in OPERATIONS if name not in CONVERSIONS.values()
    }
    calls |= {name: _of_floats(name) for name in ("floor", "ceil", "round", "trunc", "detach")}
    calls |= {"add": _add, "sub": _sub, "mul": _mul, "div": _div, "neg": _neg, "pow": _pow}
    calls |= {"gt": lambda t, a, b: t.apply("lt", b, a), "ge": lambda t, a, b: t.apply("le", b, a)}
    calls |= {"max": _of_two("maximum"), "min": _of_two("minimum")}
    calls |= {"clamp": _clamp, "clip": _clamp, "relu": _relu, "silu": _silu}
    calls |= {"square": lambda t, x: _mul(t, x, x)}
    calls |= {f"logical_{n}": _logical(f"bitwise_{n}") for n in ("and", "or", "xor", "not")}
    calls |= {
        "where": _where,
        "method_where": lambda t, x, condition, other: _where(t, condition, x, other),
        "masked_fill": lambda t, x, mask, value: _where(t, mask, value, x),
        "isfinite": _isfinite,
    }
    calls |= {"to": _to, "type": _to, "type_as": _to}
    for name in ("float", "int", "bool", "long", "half", "bfloat16", "double"):
        calls[name] = _converter(getattr(torch, name))
    calls |= dict.fromkeys(("clone", "contiguous", "positive"), _identity)
    calls |= dict.fromkeys(("item", "tolist"), _item)
    for name, value in (("ones", True), ("zeros", False), ("full", None)):
        calls |= {f"new_{name}": _filled(value), f"{name}_like": _filled(value)}
    calls |= {alias: calls[name] for alias, name in _ALIASES.items()}
    calls |= {"multiply": _mul, "subtract": _sub, "divide": _div, "true_divide": _div}
    calls |= {"greater": calls["gt"], "greater_equal": calls["ge"]}
    for name, operation in _OPERATORS.items():
        call = calls[operation]
        calls |= {f"__{name}__": call, f"__r{name}__": _swapped(call)}
    calls |= {"rsub": _swapped(_sub)}
    return calls | {f"__{name}__": calls[name] for name in _COMPARISONS}


def _swapped(call: Call) -> Call:
    return lambda tracer, a, b: call(tracer, b, a)


CALLS = _calls()
# Messages list these, without operators and synonyms.
SUPPORTED = sorted(
    {name for name in CALLS if not name.startswith(("_", "method"))} - _ALIASES.keys()
)
