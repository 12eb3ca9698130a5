"""The units to compile: the command of each source, and the cache key of what it makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flashsmith.configs import KernelId
from flashsmith.jit.cache import entry_name
from flashsmith.jit.headers import HeaderTree, hash_json
from flashsmith.jit.kernel_compilers import (
    CXX_FLAGS,
    EMULATOR_FLAGS,
    LINK_FLAGS,
    HostToolchain,
    KernelCompiler,
    archs_of,
)
from flashsmith.jit.lint import may_release
from flashsmith.jit.preludes import Prelude
from flashsmith.jit.sources import (
    EMULATOR_FOLDER,
    HOST_SCRIPT,
    Source,
    emulator_hash,
    host_roots,
    host_sources,
    kernel_sources,
)
from flashsmith.jit.target import Target

# The format of cache entries and of the rules that refuse kernels; it is part of every key.
FORMAT = 6

_HOST_FLAGS = (*CXX_FLAGS, "-O2", *EMULATOR_FLAGS)
# The emulator's functions are not hidden, because emulated kernels call these.
_HIDDEN = "-fvisibility=hidden"
_HOST_LIBRARIES = ("-ldl", "-lpthread")
# These headers are nearly all that a file of the host reads, which has a few lines of its own.
_TVM_FFI_PRELUDE = """#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
"""


@dataclass(frozen=True)
class TranslationUnit(Source):
    """A source with the command that compiles it."""

    command: tuple[str, ...]  # the source, -o and the output follow
    key: str  # hashes everything that the compiled file depends on
    artifact: str  # the name of the compiled file
    arch: str = ""  # the architecture of a kernel for GPUs
    is_linted: bool = False  # whether the lint covers the machine code
    prelude: Prelude | None = None  # what may be compiled ahead for many units

    @property
    def entry(self) -> str:
        """The folder in the cache."""
        return entry_name(self.name, self.key)


def plan_host(toolchain: HostToolchain, csrc: Path) -> list[TranslationUnit]:
    """Returns the units of the host library."""
    includes = [*host_roots(csrc), toolchain.tvm_ffi.include]
    # Errors name the files of headers, too; the names of folders on this machine are left out.
    maps = [f"-ffile-prefix-map={path}/=" for path in (csrc, toolchain.tvm_ffi.include)]
    paths = [*(f"-I{path}" for path in includes), *maps]
    units = []
    for source in host_sources(csrc):
        is_hidden = not source.label.startswith(EMULATOR_FOLDER)
        flags = [*_HOST_FLAGS, *([_HIDDEN] if is_hidden else []), "-c"]
        is_bound = any(name.startswith("tvm/ffi/") for name in source.headers.foreign)
        prelude = _TVM_FFI_PRELUDE if is_bound else ""
        units.append(
            TranslationUnit(
                **vars(source),
                command=(str(toolchain.cxx.path), *flags, *paths),
                key=_key(source, [*flags, toolchain.tvm_ffi.version], toolchain.identity),
                artifact=f"{source.name}.o",
                prelude=Prelude.of(toolchain.cxx, prelude, [*flags, *paths]),
            )
        )
    return units


def host_hash(csrc: Path, files: Sequence[Source] | None = None) -> str:
    """Returns the hash by which a host library of any compiler is found: that of all its sources,
    its linker script and the flags that every compiler gets.

    files: ``host_sources``, where they have been read.
    """
    read = host_sources(csrc) if files is None else files
    script = HeaderTree.present(csrc).read(csrc / HOST_SCRIPT)
    hashes = {source.name: source.hash for source in read}
    return hash_json([hashes, script.hash, _HOST_FLAGS, _HIDDEN, LINK_FLAGS, _HOST_LIBRARIES])


def host_key(units: Sequence[TranslationUnit], toolchain: HostToolchain, csrc: Path) -> str:
    """Returns the key of the host library."""
    keys = sorted(unit.key for unit in units)
    return hash_json([FORMAT, keys, host_hash(csrc, units), toolchain.tvm_ffi.version])


def link_command(
    toolchain: HostToolchain, csrc: Path, objects: Iterable[Path | str], output: str
) -> tuple[str, ...]:
    """Returns the command that links the host library.

    There is no rpath, because tvm_ffi is in the process before the library is. The name by which
    emulated kernels find the library has the hash of the emulator, so that a kernel finds no other.
    """
    script = f"-Wl,--version-script={csrc / HOST_SCRIPT}"
    name = f"-Wl,-soname,libflashsmith-{emulator_hash(csrc)[:16]}.so"
    libraries = [f"-L{toolchain.tvm_ffi.library}", "-ltvm_ffi", *_HOST_LIBRARIES]
    libraries += toolchain.link_flags
    parts = [toolchain.cxx.path, *LINK_FLAGS, script, name, *objects, *libraries, "-o", output]
    return tuple(map(str, parts))


def plan_kernels(
    instances: Sequence[KernelId],
    generated: Mapping[str, str],
    target: Target,
    compiler: KernelCompiler,
    csrc: Path,
) -> list[TranslationUnit]:
    """Returns the units of kernels in the order of ``instances``; a kernel for GPUs has one for
    each architecture."""
    units = []
    for source in kernel_sources(instances, generated, target, csrc):
        assert source.instance is not None
        config = source.instance.config
        prelude = compiler.prelude(source.files[source.source_file], csrc)
        for arch in archs_of(config, target):
            flags = compiler.flags(config, arch)
            units.append(
                TranslationUnit(
                    **vars(source),
                    command=tuple(compiler.command(config, arch, csrc)),
                    key=_key(source, flags, compiler.identity),
                    artifact=compiler.artifact,
                    arch=arch,
                    is_linted=bool(arch) and may_release(source.texts),
                    prelude=prelude,
                )
            )
    return units


def _key(source: Source, flags: Sequence[str], identity: str) -> str:
    """Returns the hash of text, headers, flags and compiler, without paths: the same text and
    compiler give the same object anywhere."""
    return hash_json([FORMAT, source.files, source.headers.hash, flags, identity])
