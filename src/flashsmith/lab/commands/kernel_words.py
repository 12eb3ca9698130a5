"""Resolves the kernel words of a command into kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from flashsmith import settings
from flashsmith.configs import (
    FULL,
    DType,
    ForwardKernelConfig,
    KernelConfig,
    KernelId,
    Variant,
    get_kernel_configs,
    is_kernel_name,
    parse_kernel_name_into_instance,
)
from flashsmith.configs.registry import FORWARD


def select_instances(
    words: Iterable[str],
    variants: Sequence[Variant] = (FULL,),
    dtype: DType | None = None,
    d_head: int | None = None,
    *,
    forward_only: bool = True,
) -> list[KernelId]:
    """Returns the kernels that words choose, each once, in the order of the words.

    A word is a key of get_kernel_configs or a kernel's name. A set is filtered by ``dtype`` and
    ``d_head``; if nothing of it remains, it is converted to them. A tuning space is the one for
    ``d_head``. A kernel's name must agree with both. A name with a variant is exactly that kernel;
    everything else is taken with each of ``variants``.

    Raises:
        ValueError: A word is neither a key nor a name; a name does not agree; or, if
            ``forward_only``, a word chooses kernels of another operation.
    """
    chosen: list[KernelId] = []
    configs: Sequence[KernelConfig]
    for word in words:
        if not word.strip():
            raise ValueError(
                f"kernels is {word!r}, which names none; name a set "
                f"({', '.join(settings.KERNEL_SETS)}) or a short form of a kernel's name"
            )
        if is_kernel_name(word):
            named = parse_kernel_name_into_instance(word, d_head)
            if dtype not in (None, named.config.dtype):
                raise ValueError(f"kernel {named} is for {named.config.dtype}, not {dtype}")
            configs = [named.config]
            wanted = variants if named.variant == FULL else (named.variant,)
        else:
            configs = _at_d_head(_at_dtype(_set_of(word, d_head), dtype), d_head)
            wanted = variants
        if forward_only:
            _refuse_other_operations(configs)
        chosen += [KernelId(cfg, variant) for cfg in configs for variant in wanted]
    return list(dict.fromkeys(chosen))


def named_forward_kernel(name: str, d_head: int | None = None) -> KernelId:
    """Returns the forward kernel of a name in any form. Raises ValueError for other operations."""
    named = parse_kernel_name_into_instance(name, d_head)
    _refuse_other_operations([named.config])
    return named


def refuse_other_variants(instances: Iterable[KernelId], variant: Variant) -> None:
    """Raises ValueError if a kernel's variant is not the one of --mask."""
    for instance in instances:
        if instance.variant != variant:
            name = instance.variant.name
            raise ValueError(f"kernel {instance} is {name}; add --mask {name}")


def _refuse_other_operations(configs: Iterable[KernelConfig]) -> None:
    for config in configs:
        if not isinstance(config, ForwardKernelConfig):
            raise ValueError(
                f"kernel {config} is one of the {config.operation}; expected one of the forward "
                "(`flashsmith build`, `configs`, `report` and `soak` take all)"
            )


def _set_of(key: str, d_head: int | None) -> list[KernelConfig]:
    for family in FORWARD.families:
        if key.strip().lower() == family.sets.keys.tuning and d_head in family.d_heads:
            return list(family.sets.tuning_space(d_heads=(d_head,)))
    return get_kernel_configs(key)


def _at_dtype(configs: list[KernelConfig], dtype: DType | None) -> list[KernelConfig]:
    if dtype is None:
        return configs
    fitting = [cfg for cfg in configs if cfg.dtype == dtype]
    return fitting or list(dict.fromkeys(cfg.for_dtype(dtype) for cfg in configs))


def _at_d_head(configs: list[KernelConfig], d_head: int | None) -> list[KernelConfig]:
    if d_head is None:
        return configs
    fitting = [cfg for cfg in configs if cfg.d_head == d_head]
    return fitting or list(dict.fromkeys(replace(cfg, d_head=d_head) for cfg in configs))
