"""Hooks of mkdocs: add the pages that reference.py and api.py make, and the benchmark results that
pages link to, which are outside of the documentation's folder."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs runs this file by its path
import api

import reference

_ROOT = Path(__file__).parents[2]
_RESULT = re.compile(r"\]\(\.\./benchmarks/(results/[\w./-]+)\)")  # from a page in docs/ itself


def on_files(files: Files, config: Any) -> Files:
    for name, text in (reference.pages() | api.pages()).items():
        files.append(File.generated(config, name, content=text))
    texts = [file.content_string for file in files.documentation_pages()]
    for name in sorted({name for text in texts for name in _RESULT.findall(text)}):
        path = str(_ROOT / "benchmarks" / name)
        files.append(File.generated(config, name, abs_src_path=path))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turns links to benchmarks/results, which GitHub follows, into links to the site's copy."""
    return _RESULT.sub(r"](\1)", markdown)
