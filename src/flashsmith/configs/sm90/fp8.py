"""Legality of the FP8 forward kernels of the sm90 family.

Each rule of legality has a twin in the C++ templates: a static_assert with a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashsmith.configs.sm90.forward import Sm90ForwardKernelConfig


def fp8_problems(config: Sm90ForwardKernelConfig) -> Iterator[str]:
    if config.fp8_values and not config.fp8_scores:
        yield "fp8_values needs fp8_scores: with V, Q and K have 8 bits, too."
    if config.two_level and not config.fp8_values:
        yield "two_level needs fp8_values: sums of 16-bit products lose nothing."
    if config.ping_pong_until_exp and not (config.ping_pong and config.overlap_softmax):
        yield "ping_pong_until_exp needs ping_pong, whose turns they are, and overlap_softmax."
    if config.fp8_values and config.cluster_size > 1:
        yield f"cluster_size is {config.cluster_size}; with fp8_values each block transposes its V."
    if config.fp8_values and config.stale_maximum:
        yield "stale_maximum leaves P below 1, where e4m3 has no room for small weights."
