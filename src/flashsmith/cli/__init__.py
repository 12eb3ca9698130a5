"""The `flashsmith` command. torch is loaded only by the commands that compute."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flashsmith import settings
from flashsmith.cli import (
    bench,
    build,
    cache,
    configs,
    doctor,
    hub,
    profile,
    report,
    run,
    soak,
    tune,
)
from flashsmith.errors import FlashsmithError, advice_for_missing
from flashsmith.version import __version__

_FAILED = 1
_WRONG_USAGE = 2
_INTERRUPTED = 130  # 128 + SIGINT, the convention of shells


class _Group(TyperGroup):
    """Turns a command's exception into one message on stderr and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # --debug may follow the command, too.
        if "--debug" in args:
            args = ["--debug", *(word for word in args if word != "--debug")]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        debug = bool(ctx.params.get("debug"))
        try:
            debug = debug or settings.DEBUG.get() is True
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise  # typer ends these quietly
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
        except Exception as error:
            if debug:
                raise
            message, code = _describe(error)
            typer.echo(f"error: {message}", err=True)
            raise typer.Exit(code) from None


def _describe(error: Exception) -> tuple[str, int]:
    """Returns what to print for an error, and the exit code."""
    if hasattr(error, "format_message"):  # typer's usage errors, whatever their base class
        return f"{error.format_message()} (--help lists what there is)", _WRONG_USAGE
    if isinstance(error, ValueError | TypeError):
        return str(error), _WRONG_USAGE
    if advice := advice_for_missing(error):
        return advice, _FAILED
    if isinstance(error, FlashsmithError | OSError):
        return str(error), _FAILED
    return f"{type(error).__name__}: {error} (--debug shows where)", _FAILED


def unwrapped(text: str | None) -> str:
    """Returns a docstring with each paragraph on one line, because a help text is wrapped again."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


app = typer.Typer(
    name="flashsmith",
    cls=_Group,
    help="FlashAttention kernels for NVIDIA GPUs: list, build, run and check them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    configs.configs,
    build.build,
    run.run,
    bench.bench,
    tune.tune,
    soak.soak,
    profile.profile,
    report.report,
    hub.hub,
    doctor.doctor,
):
    app.command(help=unwrapped(command.__doc__))(command)
app.add_typer(cache.app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flashsmith {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            help="Show the traceback of an error (FLASHSMITH_DEBUG=1); before or behind a command.",
        ),
    ] = False,
) -> None:
    pass  # the callback above and _Group handle both


def main() -> None:
    app(prog_name="flashsmith")
