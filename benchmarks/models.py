"""Measures the shapes that models have, at lengths that are no round numbers, beside the peers.

    python benchmarks/models.py --out benchmarks/results/h200/2026-01-01
    python benchmarks/models.py --cases decode --out benchmarks/results/h200/2026-01-01
    python benchmarks/models.py --cases packed --out benchmarks/results/h200/2026-01-01
    python benchmarks/models.py --cases decode --shard 1/2 --out build/first  # on one of two GPUs

It writes one row for each case and candidate: microseconds in turn with a flushed L2, and back to
back or, for decode, in a CUDA graph of many steps over several caches; and the ratio of the best
peer's time to ours.
Last come the geometric mean, the share of shapes below 1.0 and the least ratio, for each operation
and each way in which models use it. Each result is checked against float32 before it is timed.
Writes models.csv and models_environment.json.

Cases are shapes that were once found slow, and shapes drawn by rule: a model gives heads, d_head
and window; a way of use gives batch and lengths, drawn from a seed that the model's name and the
way's name make. No tuned table may be tuned on them, so that they tell how well tables generalize.
A row of packed sequences has their number as batch and the longest as the lengths of q and k.
Decode is compared with the peers that get the lengths of requests, as it does, and "all rows" of
full slots, for which it gets none, with the peers that get none either.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from flashsmith.configs import CAUSAL, FULL, DType, Variant
from flashsmith.lab.bench.cases import Case, workload_of
from flashsmith.lab.bench.operations import BENCHES
from flashsmith.lab.bench.program import Benchmark, run_program
from flashsmith.lab.bench.results import BACK_TO_BACK, IN_TURN
from flashsmith.lab.bench.runner import IN_GRAPH

PEERS = ("fa3", "cudnn")  # FlashAttention-2 was not within 7% of the better of them at any shape
CANDIDATES = {
    "forward": ("flashsmith", *PEERS),
    "backward": ("flashsmith", *PEERS),
    "decode": ("flashsmith", "flashsmith all rows", *BENCHES["decode"].peers),
}
_ROUND = 64  # no length is a multiple of it
_CACHES = ("entries", "pages of 16", "pages of 64", "varlen pages of 16", "varlen pages of 64")
_CACHE_ELEMENTS = 1 << 31  # of K, at most
_PACKED_SEQUENCES, _PACKED_TOKENS = (4, 64), (8000, 40000)
_SHORTEST_PACKED = 40  # documents are shorter than what a model is made for
_CAUSAL_USES = ("training", "prefill", "chunked prefill", "decode")


@dataclass(frozen=True)
class Model:
    """The shape of a model's attention.

    Attributes:
        lengths: The shortest and the longest sequence that it is used for.
        windows: The numbers of keys that queries of its layers see; 0: all that the mask leaves.
        uses: The names of the ways in which it is used.
    """

    name: str
    heads: int
    heads_kv: int
    d_head: int
    lengths: tuple[int, int]
    windows: tuple[int, ...] = (0,)
    uses: tuple[str, ...] = _CAUSAL_USES
    dtype: DType = DType.BF16


_ENCODER, _DIFFUSION = ("encoder training", "encoder"), ("encoder",)
_PACKED, _PACKED_ENCODER = (*_CAUSAL_USES, "packed training"), (*_ENCODER, "packed encoder")
MODELS = (
    Model("Llama 3 8B", 32, 8, 128, (900, 16000), uses=_PACKED),
    Model("Llama 3 70B", 64, 8, 128, (900, 16000)),
    Model("Llama 3 70B, 1 of 8 GPUs", 8, 1, 128, (900, 60000), uses=("prefill", "decode")),
    Model("Qwen 2.5 7B", 28, 4, 128, (700, 30000), uses=_PACKED),
    Model("Qwen 3 30B", 32, 4, 128, (700, 30000)),
    Model("Qwen 2.5 0.5B", 14, 2, 64, (500, 8000), uses=_PACKED),
    Model("Mistral 7B", 32, 8, 128, (5000, 20000), windows=(4096,)),
    Model("Gemma 3 12B", 16, 8, 256, (900, 16000), windows=(0, 1024)),
    Model("GPT-OSS 20B", 64, 8, 64, (900, 30000), windows=(0, 128)),
    Model("Phi 3 mini", 32, 32, 96, (700, 4000), uses=_PACKED),
    Model("Llama 2 7B", 32, 32, 128, (500, 4000), uses=_PACKED),
    Model("GPT-2", 12, 12, 64, (300, 1000), uses=("training", "prefill"), dtype=DType.FP16),
    Model("BERT base", 12, 12, 64, (60, 510), uses=_ENCODER, dtype=DType.FP16),
    Model("ModernBERT large", 16, 16, 64, (500, 8000), uses=_PACKED_ENCODER),
    Model("ViT L/14", 16, 16, 64, (197, 1370), uses=_ENCODER),
    Model("Whisper large", 20, 20, 64, (700, 1500), uses=_ENCODER, dtype=DType.FP16),
    Model("Stable Diffusion 3", 24, 24, 64, (1100, 4430), uses=_DIFFUSION),
    Model("Flux", 24, 24, 128, (1300, 4610), uses=_DIFFUSION),
    Model("Hunyuan Video", 24, 24, 128, (7000, 40000), uses=_DIFFUSION),
)
_DRAWS = {"training": 3, "encoder training": 3, "prefill": 3, "chunked prefill": 2, "decode": 5}
_DRAWS |= {"packed training": 2, "packed encoder": 3}


def _length(drawn: random.Random, lengths: tuple[int, int]) -> int:
    """Returns a length between two, log-uniform, and no multiple of 64."""
    n = round(math.exp(drawn.uniform(*map(math.log, lengths))))
    return n + 1 if n % _ROUND == 0 else n


def _batch(drawn: random.Random, tokens: tuple[int, int], length: int) -> int:
    """Returns a batch of 1 to 64 with about as many tokens as a number between two."""
    wanted = math.exp(drawn.uniform(*map(math.log, tokens)))
    return min(max(round(wanted / length), 1), 64)


def _square(
    operation: str, causal: bool, tokens: tuple[int, int]
) -> Callable[[Model, str, random.Random], Case]:
    def draw(model: Model, use: str, drawn: random.Random) -> Case:
        n = _length(drawn, model.lengths)
        batch = _batch(drawn, tokens, n)
        return _case(operation, model, use, drawn, batch, (n, n), causal)

    return draw


def _packing(drawn: random.Random, lengths: tuple[int, int]) -> tuple[int, ...]:
    """Returns the lengths of packed sequences: log-uniform up to a longest one, which is drawn
    between two. They are drawn until the tokens fit, so that short sequences are many and long
    ones few."""
    minimum, maximum = _PACKED_TOKENS
    while True:
        longest = _length(drawn, lengths)
        n = round(math.exp(drawn.uniform(*map(math.log, _PACKED_SEQUENCES))))
        found = tuple(_length(drawn, (_SHORTEST_PACKED, longest)) for _ in range(n))
        if minimum <= sum(found) <= maximum:
            return found


def _packed(operation: str, causal: bool) -> Callable[[Model, str, random.Random], Case]:
    def draw(model: Model, use: str, drawn: random.Random) -> Case:
        lengths = _packing(drawn, model.lengths)
        n = max(lengths)
        case = _case(operation, model, use, drawn, len(lengths), (n, n), causal)
        return replace(case, lengths=lengths)

    return draw


def _chunk(model: Model, use: str, drawn: random.Random) -> Case:
    """Draws a chunk of a prompt over the context that came before it."""
    context, chunk = _length(drawn, model.lengths), drawn.choice((256, 512, 2048))
    batch = drawn.choice((1, 1, 2, 4))
    return _case("forward", model, use, drawn, batch, (chunk, context + chunk), True)


def _decode(model: Model, use: str, drawn: random.Random) -> Case:
    """Draws requests of one query, or of a few as speculation has them, over a KV cache."""
    cache, queries = drawn.choice(_CACHES), drawn.choice((1, 1, 1, 1, 4))
    context = _length(drawn, model.lengths)
    if "pages" in cache:  # a page table has whole pages
        page = int(cache.rpartition(" ")[2])
        context += -context % page
    batch = round(math.exp(drawn.uniform(0, math.log(64))))
    room = _CACHE_ELEMENTS // (context * model.heads_kv * model.d_head)
    sizes = min(batch, max(room, 1)), (queries, context)
    return _case("decode", model, use, drawn, *sizes, False, cache)


def _case(
    operation: str,
    model: Model,
    use: str,
    drawn: random.Random,
    batch: int,
    lengths: tuple[int, int],
    causal: bool,
    cache: str = "",
) -> Case:
    heads, variant = (model.heads, model.heads_kv), CAUSAL if causal else FULL
    workload = workload_of(model.d_head, batch, heads, lengths, variant, model.dtype)
    window = drawn.choice(model.windows) if causal else 0
    window = window if window < lengths[1] else 0
    return Case(
        *(operation, workload, CANDIDATES[operation], model.name, use),
        window=window,
        cache=cache,
    )


_USES: dict[str, tuple[Callable[[Model, str, random.Random], Case], ...]] = {
    "training": (
        _square("forward", True, (4000, 30000)),
        _square("backward", True, (4000, 30000)),
    ),
    "encoder training": (_square("backward", False, (4000, 30000)),),
    "encoder": (_square("forward", False, (1000, 30000)),),
    "packed training": (_packed("forward", True), _packed("backward", True)),
    "packed encoder": (_packed("forward", False),),
    "prefill": (_square("forward", True, (700, 20000)),),
    "chunked prefill": (_chunk,),
    "decode": (_decode,),
}


def drawn_cases() -> Iterator[Case]:
    """Yields about 240 cases, the same ones always."""
    for model in MODELS:
        for use in model.uses:
            drawn = random.Random(f"{model.name}, {use}")
            for _ in range(_DRAWS.get(use, 4)):
                yield from (draw(model, use, drawn) for draw in _USES[use])


def slow_cases() -> Iterator[Case]:
    """Yields shapes on which a peer was found faster."""

    def case(
        operation: str,
        d_head: int,
        batch: int,
        heads: int | tuple[int, int],
        lengths: int | tuple[int, int],
        variant: Variant = CAUSAL,
        dtype: DType = DType.BF16,
        cache: str = "",
    ) -> Case:
        workload = workload_of(d_head, batch, heads, lengths, variant, dtype)
        candidates = CANDIDATES[operation]
        return Case(operation, workload, candidates, "found slow", "found slow", cache=cache)

    for n in (1000, 2500):
        yield case("forward", 128, 1, 24, n)
    yield case("forward", 64, 2, 12, 900, FULL, DType.FP16)
    yield case("forward", 64, 2, 12, 900, CAUSAL, DType.FP16)
    for n_q, n_k in ((20, 12000), (77, 30000), (3, 5000)):
        yield case("forward", 128, 2, (32, 8), (n_q, n_k))
    for d_head, n in ((128, 1111), (64, 2222), (128, 5000)):
        yield case("forward", d_head, 4, 16, n)
        yield case("backward", d_head, 4, 16, n)
    yield case("backward", 128, 8, (32, 8), 2000)
    yield case("backward", 192, 4, 16, 4096)
    yield case("backward", 128, 1, 16, 2048)
    yield case("backward", 128, 2, 8, 700, FULL)
    for batch, context, heads, cache in (
        (2, 100000, (8, 1), "entries"),
        (24, 3000, (32, 8), "entries"),
        (128, 1500, (40, 8), "entries"),
        (8, 3008, (32, 8), "varlen pages of 16"),
        (2, 100000, (8, 1), "varlen pages of 16"),
    ):
        yield case("decode", 128, batch, heads, (1, context), FULL, cache=cache)
    for batch, context, queries in ((32, 1008, 5), (3, 10000, 30)):
        lengths = (queries, context)
        yield case("decode", 128, batch, (32, 8), lengths, FULL, cache="varlen pages of 16")


def cases() -> list[Case]:
    """Returns all cases; the few that the rule draws twice are there once."""
    return list({str(case): case for case in (*slow_cases(), *drawn_cases())}.values())


BENCHMARK = Benchmark(
    "models",
    (
        *("operation", "group", "case", "dtype", "d_head", "mask", "window", "cache"),
        *("batch", "heads", "heads_kv", "queries", "seq_len_k", "candidate"),
        *("in_turn_us", "in_turn_of_best_peer", "back_to_back_us", "back_to_back_of_best_peer"),
        *("in_graph_us", "in_graph_of_best_peer", "error"),
    ),
    cases,
    kinds=lambda case: (case.operation, f"{case.operation}, {case.group}"),
    regimes=lambda case: (IN_TURN, IN_GRAPH if case.operation == "decode" else BACK_TO_BACK),
)

if __name__ == "__main__":
    sys.exit(run_program(BENCHMARK, __doc__))
