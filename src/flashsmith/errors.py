"""The exceptions that flashsmith raises beside Python's own ValueError and TypeError.

Every message names the argument or the thing that is wrong, what came, what is supported, and what
to do.
"""


class FlashsmithError(RuntimeError):
    """Base of the errors that do not come from a wrong argument."""


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
    """A score_mod or mask_mod does what no kernel can be generated for; names the line."""


class TuningError(FlashsmithError):
    """A table or journal of tuning is damaged or from elsewhere, or no kernel could be tuned."""


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
