"""Sharding of the operators for DTensors: each rank computes some sequences of the batch, or some
heads, as with torch's flash operators. Other placements are redistributed, or gathered."""

from __future__ import annotations

import sys
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor._op_schema import OpSchema, OpStrategy

_BATCH, _HEADS = 0, 1
_KINDS = (_BATCH, _HEADS)
_NOWHERE = (None, None)
# Kernels count these from 0 in each rank, and would compute another result.
_OF_PLACES = ("rng_state", "score")

_known: set[str] = set()


def let_dtensors_know(*names: str) -> None:
    """Tells torch how these operators are sharded, once DTensors, which take long to import, are
    imported."""
    if "torch.distributed.tensor" not in sys.modules or _known.issuperset(names):
        return
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

    propagator = DTensor._op_dispatcher.sharding_propagator
    for name in names:
        operator = getattr(torch.ops.flashsmith, name).default
        # All arguments distinguish calls, return_lse for example.
        info = RuntimeSchemaInfo(static_argnum=0, needs_pytree=True)
        propagator.register_op_strategy(operator, _strategy, info)
    _known.update(names)


# torch.compiler.assume_constant_result sets this attribute, but would import all of dynamo: a graph
# has no trace of the call, which is made during tracing.
let_dtensors_know._dynamo_marked_constant = True  # type: ignore[attr-defined]


class _Call(NamedTuple):
    """The arguments of an operator by name; for tensors, what torch knows of their placements."""

    schema: Any
    given: dict[str, Any]

    @classmethod
    def of(cls, schema: OpSchema) -> _Call:
        arguments = schema.op._schema.arguments
        given = {a.name: a.default_value for a in arguments}
        named = zip((a.name for a in arguments), schema.args_schema, strict=False)
        return cls(schema, given | dict(named) | schema.kwargs_schema)

    @property
    def tensors(self) -> list[str]:
        """The names of all tensors, in the operator's order; a list's name occurs once for each
        tensor."""
        from torch.distributed.tensor._op_schema import OpStrategy, TupleStrategy

        found = []
        for name, each in self.given.items():
            n = len(each.children) if isinstance(each, TupleStrategy) else 1
            found += [name] * (n if isinstance(each, OpStrategy | TupleStrategy) else 0)
        return found

    @property
    def results(self) -> list[str | None]:
        """The argument that each result is shaped like; None: the result is empty."""
        name = self.schema.op._schema.name.removeprefix("flashsmith::")
        if name == "attention_backward":
            wanted = ("sinks", "bias")
            return [
                "q",
                "k",
                "v",
                *(each if self.given[f"wants_{each}"] else None for each in wanted),
            ]
        lse = "lse" if self.given["return_lse"] else None
        if name == "attention_forward_out":
            return [lse]
        return ["q" if self.given.get("out") is None else None, lse]

    @property
    def written(self) -> list[str]:
        """The tensors that are written, and so must not be moved."""
        arguments = self.schema.op._schema.arguments
        return [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]

    def has(self, name: str) -> bool:
        """Returns whether an argument is given and not a default like None, False or 0."""
        value = self.given.get(name)
        return value is not None and value is not False and value != 0

    def can_be(self, kind: int) -> bool:
        """Returns whether ranks can divide the sequences, or the heads, among them."""
        if any(self.has(name) for name in _OF_PLACES):
            return False
        if kind == _HEADS:
            return True
        is_packed = self.has("cu_seqlens_q") or self.has("cu_seqlens_k")
        shares_cache = self.has("block_table") or self.has("cache_batch_idx")
        return not is_packed and not (shares_cache and self.has("k_new"))

    def dims(self, name: str) -> tuple[int | None, int | None]:
        """Returns a tensor's dimensions of the batch and of heads; None: it has no such
        dimension."""
        packed = len(self.given["q"].shape) == 3
        shape = () if name in ("lse", "dlse") else tuple(self.given[name].shape)
        match name:
            case "q" | "k" | "v" | "o" | "do" | "out" | "k_new" | "v_new":
                return (None, 1) if len(shape) == 3 else (0, 2)
            case "k_cache" | "v_cache":
                shared = self.has("block_table") or self.has("cache_batch_idx")
                return (None if shared else 0), 2
            case "lse" | "dlse":
                return (None, 0) if packed else (0, 1)
            case "sinks":
                return None, 0
            case "bias":
                return (0 if shape[0] > 1 else None), (1 if shape[1] > 1 else None)
            case "q_scale" | "k_scale" | "v_scale" if len(shape) == 3:  # of rows of a cache
                return self.dims("k_cache")
            case "alibi_slopes" | "q_scale" | "k_scale" | "v_scale":
                if len(shape) == 2:
                    return 0, 1
                return None, (0 if shape != (1,) else None)
            case "seqused_q" | "seqused_k" | "cache_seqlens" | "cache_leftpad":
                return 0, None
            case "block_table" | "cache_batch_idx":
                return 0, None
        return _NOWHERE


def _strategy(schema: OpSchema) -> OpStrategy:
    """Returns all placements of an operator's tensors, among which torch chooses the cheapest."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy
    from torch.distributed.tensor.placement_types import Partial

    call = _Call.of(schema)
    names, results = call.tensors, call.results
    adds_up = Partial() if "wants_sinks" in call.given else Replicate()  # a gradient

    def placed(dim: int | None, otherwise: Any) -> Any:
        return otherwise if dim is None else Shard(dim)

    ways: list[list[Any]] = [[Replicate()] * (len(results) + len(names))]
    for kind in filter(call.can_be, _KINDS):
        of_results = [
            Replicate() if each is None else placed(call.dims(each)[kind], adds_up)
            for each in results
        ]
        of_names = [placed(_dims(call, name)[kind], Replicate()) for name in names]
        ways.append(of_results + of_names)

    def is_valid(inputs: list[DTensorSpec], outputs: Any) -> bool:
        by_name = dict(zip(names, inputs, strict=True))
        stay = all(by_name[name].placements == _placements(call, name) for name in call.written)
        return stay and _shares_heads(call, by_name["q"])

    mesh = schema.get_mesh_from_args()
    found = expand_to_full_mesh_op_strategy(
        mesh, schema, ways, input_index=len(results), is_valid_strategy_cb=is_valid
    )
    if not found.strategies:
        written = ", ".join(f"{name} {_placements(call, name)}" for name in call.written)
        raise ValueError(
            f"these are written where they are, and so cannot be placed like this: {written}; "
            "expected shards of the batch, shards of heads, or replicas, of all the same"
        )
    return found


def _dims(call: _Call, name: str) -> tuple[int | None, int | None]:
    return call.dims(name)


def _placements(call: _Call, name: str) -> Any:
    return call.given[name].strategies[0].output_spec.placements


def _shares_heads(call: _Call, q: DTensorSpec) -> bool:
    """Returns whether each rank's heads of q share only the rank's heads of k: both divide equally,
    or have the same number."""
    heads = call.dims("q")[_HEADS]
    ranks = prod(
        size
        for size, placement in zip(q.mesh.shape, q.placements, strict=True)
        if placement.is_shard(heads)
    )
    keys = "k" if "k" in call.given else "k_cache"
    n_heads = call.given["q"].shape[heads]
    n_heads_kv = call.given[keys].shape[call.dims(keys)[_HEADS] or 0]
    return bool(n_heads == n_heads_kv or n_heads_kv % ranks == 0)
