"""Renders a Report as one HTML page that loads no other file."""

from __future__ import annotations

import re
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from flashsmith.configs import Workload
from flashsmith.configs.descriptions import how_it_works
from flashsmith.lab.report import description, lines
from flashsmith.lab.report.budget import UNITS
from flashsmith.lab.report.model import Report
from flashsmith.lab.report.sass import CLASSES
from flashsmith.runtime.counters import COUNTERS
from flashsmith.version import __version__

_TEMPLATES = files("flashsmith.lab.report") / "templates"


# Descriptions of Nsight Compute's stall reasons.
_STALLS = {
    "barrier": "other warps at a barrier",
    "dispatch": "the dispatcher",
    "gmma": "wgmma",
    "long_scoreboard": "global memory",
    "math_pipe_throttle": "the arithmetic or tensor pipe",
    "mio_throttle": "the queue to shared memory",
    "not_selected": "their turn",
    "short_scoreboard": "shared memory",
    "wait": "fixed latencies",
}


def render(report: Report) -> str:
    """Returns the page's HTML."""
    environment = Environment(
        loader=FunctionLoader(_read),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (_number, _percent, _signed, _millions, _name, _ticks, _described)
    environment.filters |= {each.__name__.strip("_"): each for each in filters}
    return environment.get_template("report.html.j2").render(
        report=report,
        lines=lines,
        description=description,
        how_it_works=how_it_works,
        counters=COUNTERS,
        classes=CLASSES,
        units=UNITS,
        stalls=_STALLS,
        style=Markup(_read("report.css")),
        version=__version__,
    )


def _read(name: str) -> str:
    return (_TEMPLATES / name).read_text()


def _name(kernel: str) -> Markup:
    """Returns a kernel's short form, in which lines may break after each feature."""
    return Markup("<code>{}</code>").format(Markup("+<wbr>").join(kernel.split("+")))


def _described(workload: Workload) -> str:
    problem = workload.problem
    return (
        f"{problem.dtype}, d_head {problem.d_head}, {workload.variant.name} attention, sequence "
        f"{problem.seq_len_k}, batch {problem.batch}, {problem.heads} heads"
    )


def _ticks(text: str) -> Markup:
    """Formats `x` as code."""
    # Markup becomes a str first, because re.sub would make it escape its parts once more.
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _number(value: float) -> str:
    """Formats whole numbers with thin spaces, and others with their significant digits."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _millions(value: float) -> str:
    return f"{value / 1e6:,.1f} M"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _signed(before: float, after: float) -> str:
    """Returns the change from one number to another."""
    if not before:
        return "new"
    return f"{100 * (after / before - 1):+.0f}%".replace("-", "\N{MINUS SIGN}")
