"""Makes the API pages of the site: a directive of mkdocstrings for each public name.

The names come from each module's ``__all__``, which griffe reads without importing the module. The
names of modules without ``__all__`` are listed here.
"""

from __future__ import annotations

from pathlib import Path

import griffe

_SOURCE = Path(__file__).resolve().parents[2] / "src"
_MADE = "<!-- Made by tools/docs/api.py from the package. -->"
_ERRORS = (
    *("FlashsmithError", "ToolchainError", "BuildError", "CacheError", "KernelNotFoundError"),
    *("EmulatorFault", "TracingError", "TuningError", "DeviceError", "GpuLostError"),
    "ProfilerError",
)
# Page -> title, and its modules, with names for those that have no __all__.
_PAGES: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "api": ("API: functions", {"flashsmith": (), "flashsmith.errors": _ERRORS}),
    "api-configs": (
        "API: configurations",
        {
            "flashsmith.configs": (),
            "flashsmith.selection.select": ("select_config",),
            "flashsmith.codegen": ("generate", "write"),
        },
    ),
    "api-integrations": (
        "API: functions of other libraries",
        {
            "flashsmith.flash_attn": (),
            "flashsmith.flash_attn.fa3": (),
            "flashsmith.flash_attn.bert_padding": ("unpad_input", "pad_input"),
            "flashsmith.integrations.transformers": ("register",),
            "flashsmith.integrations.torch_sdpa": ("register", "override"),
            "flashsmith.integrations.vllm": ("register",),
        },
    ),
    "api-kernels": (
        "API: building, loading and checking kernels",
        {"flashsmith.jit": (), "flashsmith.runtime": (), "flashsmith.reference": ()},
    ),
}


def pages() -> dict[str, str]:
    """Returns the pages' Markdown, by path in the documentation."""
    package = griffe.load("flashsmith", search_paths=[_SOURCE])
    return {f"reference/{name}.md": _page(package, *page) for name, page in _PAGES.items()}


def _page(
    package: griffe.Object | griffe.Alias, title: str, modules: dict[str, tuple[str, ...]]
) -> str:
    parts = [f"# {title}", _MADE]
    for path, listed in modules.items():
        module = package[path.partition(".")[2]] if "." in path else package
        names = list(listed) or [str(name) for name in module.exports or ()]
        names.sort(key=lambda name: name[0].isupper())  # functions are looked for most often
        found = [_member(module, name) for name in names if name != "__version__"]
        parts.append(f"## `{path}`")
        parts += [f"::: {path}.{name}" for name in found if name]
    return "\n\n".join(parts) + "\n"


def _member(module: griffe.Object | griffe.Alias, name: str) -> str:
    """Returns a name for mkdocstrings; a function that hides its module of the same name is found
    in that module, and other modules give nothing."""
    if not module[name].is_module:
        return name
    return f"{name}.{name}" if name in module[name].members else ""
