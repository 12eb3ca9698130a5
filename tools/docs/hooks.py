"""Hooks of mkdocs: adds the pages that tools/docs/reference.py makes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs runs this file by its path
from reference import pages


def on_files(files: Files, config: Any) -> Files:
    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    return files
