"""Makes the reference pages of the site from the package: commands and environment variables.

python tools/docs/reference.py --out build/reference     # for a look; mkdocs makes its own pages
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import _environment

_environment.enter()

from typer.main import get_command

from flashsmith import settings
from flashsmith.cli import app

_PROGRAM = "flashsmith"
_MADE = "<!-- Made by tools/docs/reference.py from the package. -->"


def pages() -> dict[str, str]:
    """Returns the pages' Markdown, by path in the documentation."""
    return {"reference/cli.md": cli_page(), "reference/environment.md": environment_page()}


def cli_page() -> str:
    """Returns a page of every command with its arguments and options, as `--help` has them."""
    root = get_command(app)
    parts = [
        "# Command line",
        _MADE,
        f"`{_PROGRAM} COMMAND --help` says the same. Tables go to stdout, as Markdown into a pipe "
        "and as JSON with `--json`; remarks and progress go to stderr. Exit codes: 0 done, 1 "
        "failed, 2 wrong usage, 130 interrupted.",
    ]
    for name, command in _commands(root, _PROGRAM):
        is_root = command is root
        parts += [f"## {name}", _help_of(command)]
        if not hasattr(command, "commands"):
            parts.append(f"```\n{_usage(name, command)}\n```")
        if table := _parameters(command, with_help=is_root):
            parts.append(table)
    return "\n\n".join(part for part in parts if part) + "\n"


def environment_page() -> str:
    """Returns a page of every environment variable that flashsmith reads."""
    rows = [
        [f"`{each.name}`", _cell(each.kind), _cell(each.default), _cell(each.meaning)]
        for each in settings.ALL
    ]
    intro = (
        "A variable is read when it is needed, never at import. An empty one counts as unset; a "
        "value that a variable cannot have is an error that names it."
    )
    table = _table(["variable", "value", "default", "meaning"], rows)
    return "\n\n".join(["# Environment variables", _MADE, intro, table]) + "\n"


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, command
    for sub_name, sub_command in getattr(command, "commands", {}).items():
        yield from _commands(sub_command, f"{name} {sub_name}")


def _help_of(command: Any) -> str:
    text = str(command.help or "")
    return "\n\n".join(" ".join(each.split()) for each in text.split("\n\n")).replace("\b", "")


def _usage(name: str, command: Any) -> str:
    arguments = [_name_of(each) for each in command.params if each.param_type_name == "argument"]
    return " ".join([name, "[OPTIONS]", *arguments])


def _parameters(command: Any, with_help: bool) -> str:
    rows = [
        [f"`{_name_of(each)}`", _cell(_default_of(each)), _cell(getattr(each, "help", "") or "")]
        for each in command.params
        if not getattr(each, "hidden", False) and (with_help or each.name != "help")
    ]
    return _table(["option", "default", "meaning"], rows) if rows else ""


def _name_of(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    if parameter.is_flag:
        return names
    return f"{names} {parameter.metavar or parameter.name.upper()}"


def _default_of(parameter: Any) -> str:
    default = parameter.default
    if default is None or default == () or callable(default):
        return ""
    if isinstance(default, bool):
        return "on" if default else ""
    return f"`{default}`"


def _table(headers: list[str], rows: list[list[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the generated pages of the documentation.")
    parser.add_argument("--out", type=Path, default=Path("build/reference"))
    out = parser.parse_args().out
    for name, text in pages().items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    main()
