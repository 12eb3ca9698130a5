"""The options that commands share, and the request that they describe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from flashsmith import settings
from flashsmith.configs import FULL, DType, Variant
from flashsmith.configs.workload import D_HEADS
from flashsmith.lab.commands.request import Request

KERNEL_SETS = ", ".join(settings.KERNEL_SETS)

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of tables.")
]
KernelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kernels",
        "-k",
        metavar="KEY|NAME",
        help=f"A set ({KERNEL_SETS}) or a kernel's short form; may be repeated.",
    ),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(help="fp16 or bf16. Narrows a set; a set without this dtype is converted to it."),
]
DHeadOption = Annotated[
    int | None,
    typer.Option(
        help=f"One of {', '.join(map(str, D_HEADS))}. Narrows a set; a set without "
        "this d_head is converted to it."
    ),
]
MaskOption = Annotated[
    str, typer.Option(help="full, or causal: a query attends to no key that lies ahead.")
]
DHeadsOption = Annotated[str, typer.Option("--d-head", help="Head dimensions, by commas.")]
DtypesOption = Annotated[str, typer.Option("--dtype", help="fp16, bf16 or fp16,bf16.")]
MasksOption = Annotated[str, typer.Option("--mask", help="full, causal or full,causal.")]
DeviceOption = Annotated[
    str | None,
    typer.Option(metavar="cuda|cpu", help="Default: cuda if torch has a GPU; cpu: emulator."),
]
BatchOption = Annotated[int | None, typer.Option(min=1, help="In place of --tokens.")]
HeadsOption = Annotated[int | None, typer.Option(min=1, help="In place of --hidden.")]
TokensOption = Annotated[
    int | None, typer.Option(min=1, help="batch = tokens / seq_len. Default: 16384; counts 256.")
]
# The range fits the generators that draw tensors and problems from a seed and its neighbours.
MAX_SEED = 1 << 62
_LONGEST = 1 << 30  # max length of a sequence in kernels
HiddenOption = Annotated[
    int | None, typer.Option(min=1, help="heads = hidden / d_head. Default: 2048; counts 128.")
]


def make_request(
    *,
    kernels: Sequence[str] | None = None,
    mask: str = FULL.name,
    masks: str | None = None,
    dtype: str | None = None,
    dtypes: str | None = None,
    d_head: int | None = None,
    d_heads: str | None = None,
    seq_len: int | None = None,
    seq_lens: str | None = None,
    tokens: int | None = None,
    hidden: int | None = None,
    batch: int | None = None,
    heads: int | None = None,
    device: str | None = None,
    grids: str | None = None,
) -> Request:
    """Returns the request that options describe; a plural name is a list separated by commas.

    Without --kernels, the environment variable KERNELS names the kernels.

    Raises:
        ValueError: An option has an invalid value, or KERNELS is not a set; the message names it.
    """
    by_environment = settings.KERNELS.get()
    names = [mask] if masks is None else split_words(masks)
    numbers = [d_head] if d_heads is None else parse_numbers("--d-head", d_heads)
    lengths = [seq_len] if seq_lens is None else parse_numbers("--seq-len", seq_lens)
    if longer := [length for length in lengths if length is not None and length > _LONGEST]:
        raise ValueError(f"--seq-len is {longer[0]}; kernels take sequences up to {_LONGEST}")
    return Request(
        words=tuple(kernels or ([by_environment] if by_environment else [])),
        dtypes=tuple(map(DType.from_string, _given(dtype, dtypes))),
        d_heads=tuple(check_d_head(number) for number in numbers if number is not None),
        seq_lens=tuple(length for length in lengths if length is not None),
        variants=tuple(dict.fromkeys(map(Variant.from_name, names))),
        tokens=tokens,
        hidden=hidden,
        batch=batch,
        heads=heads,
        device=device,
        grids=() if grids is None else tuple(split_words(grids)),
    )


def _given(word: str | None, words: str | None) -> list[str]:
    if words is not None:
        return split_words(words)
    return [] if word is None else [word]


def parse_peers(text: str) -> list[str] | None:
    """Returns the names of the peers; None for all that are available."""
    names = split_words(text.lower())
    if names == ["available"]:
        return None
    return [] if names in ([""], ["none"]) else names


def check_d_head(d_head: int) -> int:
    if d_head not in D_HEADS:
        supported = ", ".join(map(str, D_HEADS))
        raise ValueError(f"--d-head is {d_head}; supported are {supported}")
    return d_head


def split_words(text: str) -> list[str]:
    """Returns the words of an option that takes several, separated by commas."""
    return [word.strip() for word in text.split(",")]


def parse_numbers(option: str, text: str) -> list[int]:
    """Returns distinct whole numbers, separated by commas. Raises ValueError that names
    ``option``."""
    words = split_words(text)
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise ValueError(f"{option} is {text!r}; expected whole numbers above 0, like 1024,2048")
    return [int(word) for word in dict.fromkeys(words)]
