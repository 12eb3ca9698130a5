"""From the words of a command line to kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from flashsmith import settings
from flashsmith.configs import (
    FULL,
    DType,
    ForwardKernelConfig,
    ForwardKernelInstance,
    ForwardVariant,
    get_kernel_configs,
    is_kernel_name,
    parse_kernel_name_into_instance,
)
from flashsmith.configs.sm90.forward import SUPPORTED_D_HEADS


def kernel_words(given: Iterable[str] | None, default: str) -> list[str]:
    """The words of --kernels; without any KERNELS, and where that is unset ``default``.

    Raises:
        ValueError: KERNELS is no set.
    """
    chosen = settings.KERNELS.get()
    return list(given or []) or [chosen or default]


def parse_dtype(text: str | None) -> DType | None:
    return None if text is None else DType.from_string(text)


def parse_dtypes(text: str | None) -> list[DType | None]:
    """Those of a list by commas; for no text one that is open."""
    return [None] if text is None else [DType.from_string(word) for word in split_words(text)]


def parse_d_heads(text: str | None) -> list[int | None]:
    """As ``parse_dtypes``. Raises ValueError for one that no family takes."""
    return [None] if text is None else [check_d_head(d) for d in parse_numbers("--d-head", text)]


def parse_masks(text: str) -> list[ForwardVariant]:
    """Of a list by commas, each once."""
    return list(dict.fromkeys(ForwardVariant.from_name(word) for word in split_words(text)))


def check_d_head(d_head: int | None) -> int | None:
    if d_head is not None and d_head not in SUPPORTED_D_HEADS:
        supported = ", ".join(map(str, SUPPORTED_D_HEADS))
        raise ValueError(f"--d-head is {d_head}; supported are {supported}")
    return d_head


def select_instances(
    words: Iterable[str],
    variants: Sequence[ForwardVariant] = (FULL,),
    dtype: DType | None = None,
    d_head: int | None = None,
) -> list[ForwardKernelInstance]:
    """The kernels that words choose, each once, in the order of the words.

    A word is a key of get_kernel_configs or a kernel's name. A set is narrowed to ``dtype`` and
    ``d_head``, and taken at them if it has none of them; a name must agree. A name that says
    its variant is that one kernel, any other is taken at each of ``variants``.

    Raises:
        ValueError: A word is neither; a name does not agree.
    """
    chosen: list[ForwardKernelInstance] = []
    for word in words:
        if is_kernel_name(word):
            named = parse_kernel_name_into_instance(word, d_head)
            if dtype not in (None, named.config.dtype):
                raise ValueError(f"kernel {named} is for {named.config.dtype}, not {dtype}")
            configs = [named.config]
            wanted = variants if named.variant == FULL else (named.variant,)
        else:
            configs = _at_d_head(_at_dtype(get_kernel_configs(word), dtype), d_head)
            wanted = variants
        chosen += [ForwardKernelInstance(cfg, variant) for cfg in configs for variant in wanted]
    return list(dict.fromkeys(chosen))


def _at_dtype(configs: list[ForwardKernelConfig], dtype: DType | None) -> list[ForwardKernelConfig]:
    if dtype is None:
        return configs
    fitting = [cfg for cfg in configs if cfg.dtype == dtype]
    return fitting or list(dict.fromkeys(cfg.for_dtype(dtype) for cfg in configs))


def _at_d_head(configs: list[ForwardKernelConfig], d_head: int | None) -> list[ForwardKernelConfig]:
    if d_head is None:
        return configs
    fitting = [cfg for cfg in configs if cfg.d_head == d_head]
    return fitting or list(dict.fromkeys(replace(cfg, d_head=d_head) for cfg in configs))


def split_words(text: str) -> list[str]:
    """The words of an option that takes several, by commas."""
    return [word.strip() for word in text.split(",")]


def parse_numbers(option: str, text: str) -> list[int]:
    """As ``split_words``, whole numbers, each once. Raises ValueError that names ``option``."""
    words = split_words(text)
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise ValueError(f"{option} is {text!r}; expected whole numbers above 0, like 1024,2048")
    return [int(word) for word in dict.fromkeys(words)]
