"""The exceptions that flashsmith raises beside Python's own ValueError and TypeError.

Every message names the wrong argument or thing, what came, what is supported, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class FlashsmithError(RuntimeError):
    """Base of all errors that a wrong argument does not cause."""


class ToolchainError(FlashsmithError):
    """No usable compiler was found, or the one found cannot build the target."""


class BuildError(FlashsmithError):
    """A compiler failed, or a kernel broke a rule of the build (a register spill, for example)."""


class CacheError(FlashsmithError):
    """The kernel cache cannot be used: foreign permissions, a full disk, a damaged directory."""


class KernelNotFoundError(FlashsmithError, LookupError):
    """No loaded library holds the configuration, and building on demand is off."""


class EmulatorFault(FlashsmithError):
    """A kernel broke a rule on the emulator: a race, a bad address, a deadlock."""


class TracingError(FlashsmithError):
    """A score_mod or mask_mod does what no kernel can be generated for; the message names the
    line."""


class TuningError(FlashsmithError):
    """A table or journal of tuning is damaged or for another GPU, or no kernel could be tuned."""


class DeviceError(FlashsmithError):
    """The GPU is missing, too old, or refused a launch."""


class GpuLostError(DeviceError):
    """A kernel broke the GPU's state for this process: nothing runs in it any more."""

    def __init__(self, culprit: str, reason: str) -> None:
        super().__init__(
            f"the GPU does not answer this process any more since {culprit} ran ({reason}); "
            "start a new process"
        )
        self.culprit = culprit


class ProfilerError(FlashsmithError):
    """ncu is missing, may not read the GPU's counters, or profiled nothing that can be used."""


# The extra of flashsmith that brings each package.
_EXTRAS = {
    "torch": "torch", "numpy": "torch", "safetensors": "torch",
    "jinja2": "report", "markupsafe": "report",
}  # fmt: skip


def advice_for_missing(error: Exception) -> str | None:
    """Returns a sentence that says how to install the package that an import lacks; None if no
    extra of flashsmith brings it."""
    if not isinstance(error, ModuleNotFoundError) or error.name not in _EXTRAS:
        return None
    return f"{error.name} is not installed; `pip install 'flashsmith[{_EXTRAS[error.name]}]'`"


@contextmanager
def explaining_missing() -> Iterator[None]:
    """Makes a ModuleNotFoundError inside say how to install the package: Python's message has only
    the package's name, below the frames of every import on the way."""
    try:
        yield
    except ModuleNotFoundError as error:
        if advice := advice_for_missing(error):
            raise ModuleNotFoundError(advice, name=error.name) from None
        raise
