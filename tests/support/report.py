"""Shared by the tests of the report: a report of two kernels, and a parser of its page."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from flashsmith import settings
from flashsmith.configs import (
    CAUSAL,
    FULL,
    KernelId,
    get_kernel_progression_configs,
)
from flashsmith.jit import find_cuda_toolkit
from flashsmith.lab.report import Report, collect, make_report, read_results
from flashsmith.lab.report.sass import parse_sass
from support.paths import RESULTS
from support.sm90_kernels import LAST, PROGRESSION

PLAIN, SWIZZLED = (KernelId(config) for config in get_kernel_progression_configs()[:2])
# These are the plainest kernel of the sm90 family, and the one with most features.
PLAIN_SM90, LAST_SM90 = (KernelId(config, FULL) for config in (PROGRESSION[0], LAST))
LAST_SM90_CAUSAL = KernelId(LAST, CAUSAL)

# Two loops have matrix products, the first of them also masks; one has none; a trap ends it.
SASS = """
		Function : kernel
	.headerflags	@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;            /* 0x00000a00ff017b82 */
                                                                     /* 0x000fe20000000800 */
        /*0010*/                   LDGSTS.E.BYPASS.128 [R2], desc[UR4][R4.64] ;  /* 0x1 */
        /*0020*/              @!P0 BRA 0x10 ;                        /* 0x1 */
        /*0030*/                   HMMA.16816.F32 R8, R4, R6, R8 ;   /* 0x1 */
        /*0040*/                   FSEL R3, R4, -INF , P1 ;          /* 0x1 */
        /*0050*/               @P2 BRA 0x30 ;                        /* 0x1 */
        /*0060*/                   LDSM.16.M88.4 R4, [R20] ;         /* 0x1 */
        /*0070*/                   HMMA.16816.F32 R8, R4, R6, R8 ;   /* 0x1 */
        /*0080*/                   MUFU.EX2 R3, R3 ;                 /* 0x1 */
        /*0090*/                   IMAD.MOV.U32 R3, RZ, RZ, R4 ;     /* 0x1 */
        /*00a0*/                   IMAD.WIDE R4, R3, 0x2, R6 ;       /* 0x1 */
        /*00b0*/               @P0 BRA 0xd0 ;                        /* 0x1 */
        /*00c0*/                   EXIT ;                            /* 0x1 */
        /*00d0*/             @!UP0 UIADD3 UR4, UR4, -0x1, URZ ;      /* 0x1 */
        /*00e0*/              @!P3 BRA 0x60 ;                        /* 0x1 */
        /*00f0*/                   STL [R1], R3 ;                    /* 0x1 */
        /*0100*/                   EXIT ;                            /* 0x1 */
        /*0110*/                   BRA 0x110;                        /* 0x1 */
		..........


		Function : no_loop
        /*0000*/                   EXIT ;                            /* 0x1 */
        /*0010*/                   BRA 0x10;                         /* 0x1 */
"""


def no_progress(*_: object) -> None:
    pass


@functools.cache
def report_without_nvcc(*instances: KernelId) -> Report:
    """Returns a report without nvcc, as on most laptops, with the times of the H200."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(settings.NVCC.name, "/nowhere/nvcc")
        # The cache may have cubins, which must not be found.
        patch.setattr(collect._Collector, "_build", lambda *_: find_cuda_toolkit())
        return make_report(instances, read_results(RESULTS), "sm_90a", no_progress)


def sm80_report() -> Report:
    """Returns a report of the progression's first steps."""
    return report_without_nvcc(PLAIN, SWIZZLED)


def sm90_report() -> Report:
    return report_without_nvcc(PLAIN_SM90, LAST_SM90)


def with_everything(report: Report) -> Report:
    """Adds machine code and the rates of a session, which a report without nvcc may lack."""
    code = parse_sass(SASS)["kernel"]
    (group,) = report.groups
    kernels = [replace(kernel, code=code) for kernel in group.kernels]
    rates = {"matmul_tflops": 700.0, "copy_gb_per_s": 4200.0}
    ceilings = {dtype: {"dtype": dtype, **rates} for dtype in ("FP16", "BF16")}
    environment = report.results.environment | {"ceilings": ceilings}
    return replace(
        report,
        groups=[replace(group, kernels=kernels)],
        results=replace(report.results, environment=environment, ceilings={}),
    )


class Page(HTMLParser):
    """A page's tags and text, as the tests need them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "wbr", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", "".join(Page(html).text))
