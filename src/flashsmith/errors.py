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


class DeviceError(FlashsmithError):
    """The GPU is missing, too old, or refused a launch."""
