"""The global memory that some calls need beside their tensors.

Kept memory belongs to one thread and one stream: the launches of a thread on a stream run one after
the other, whatever their plans are. Two threads that share a stream may interleave within a plan of
two launches, because libraries release the GIL: one would overwrite what the other keeps for its
second launch.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from flashsmith.runtime.launch_cache import launch_cache
from flashsmith.runtime.plan import Plan

_MIN_COUNTER_BYTES = 4096
_MAX_KEPT_BYTES = 16 << 20
# Zeros for the counters of CUDA graphs are set aside in chunks of this size, up to a max for each
# device.
_ASIDE_BYTES, _MAX_ASIDE_BYTES, _ASIDE_ALIGNMENT = 1 << 20, 64 << 20, 256

FRESH = -1  # in place of a stream's number: a workspace that was made for one call

_Memory = tuple[torch.Tensor | None, torch.Tensor | None]  # a workspace, and counters


def workspace_for(plan: Plan, device: torch.device) -> torch.Tensor | None:
    """Returns the workspace of one call with this plan on the current stream of ``device``, or
    None.

    A workspace that is all zeros, and that calls leave zero, is kept. Any other comes from torch's
    allocator for each call.
    """
    n_bytes = plan.workspace_bytes
    if n_bytes == 0:
        return None
    if is_kept(plan, device):
        # This reads the stream's number directly: torch.cuda.current_stream would make an object.
        return _of_stream(n_bytes, device, torch._C._cuda_getCurrentRawStream(device.index))
    workspace = torch.empty(n_bytes, dtype=torch.uint8, device=device)
    if plan.zeroed_bytes > 0:
        workspace[: plan.zeroed_bytes].zero_()
    return workspace


def kept_workspace(plan: Plan, device: torch.device) -> torch.Tensor | None:
    """Returns a kept workspace without zeros, of at least the plan's size, for this thread's calls
    on the current stream; None if none is kept for such a plan."""
    n_bytes = plan.workspace_bytes
    is_for_hand_over = 0 < n_bytes <= _MAX_KEPT_BYTES and plan.zeroed_bytes == 0
    if not is_for_hand_over or device.type != "cuda" or _is_capturing(device):
        return None
    return _of_stream(_kept_bytes(n_bytes), device, current_stream(device), "sums")


def counters_for(plan: Plan, device: torch.device) -> torch.Tensor | None:
    """Returns the zeros that one call with this plan counts in, on the current stream, or None.

    A call leaves its counters zero, so they are kept as ``workspace_for`` keeps zeros. No call
    stops half way and leaves other values: a GPU completes a launch or aborts the whole process. A
    CUDA graph gets separate counters, because it may be replayed on any stream: zeros that were set
    aside before, or else memory that every replay zeroes, which costs a launch.
    """
    n_bytes = plan.counter_bytes
    if n_bytes == 0:
        return None
    if device.type == "cuda" and not _is_capturing(device):
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        return _of_stream(_kept_bytes(n_bytes), device, stream)
    aside = _aside.get(device)
    counters = None if aside is None else aside.take(n_bytes)
    if counters is not None:
        return counters
    return torch.zeros(n_bytes, dtype=torch.uint8, device=device)


class Scratch:
    """Returns, at each call, workspace and counters for plans on a device that need at most as much
    as a given plan does.

    A workspace of at most ``_MAX_KEPT_BYTES`` is kept as counters are, because torch's allocator
    takes a third of the call's time; no other call reads what a launch leaves there.
    """

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self._plan, self._device = plan, device
        self._is_kept = 0 < plan.workspace_bytes <= _MAX_KEPT_BYTES and device.type == "cuda"
        n_counters = plan.counter_bytes and _kept_bytes(plan.counter_bytes)
        self._sizes = _kept_bytes(plan.workspace_bytes), n_counters, device.index

    def that_also_serves(self, plan: Plan) -> Scratch:
        """Returns a scratch that is also large enough for another plan."""
        workspace = max(plan.workspace_bytes, self._plan.workspace_bytes)
        counters = max(plan.counter_bytes, self._plan.counter_bytes)
        served = replace(plan, workspace_bytes=workspace, counter_bytes=counters)
        return type(self)(served, self._device)

    def __call__(self) -> _Memory:
        """Returns the memory for this thread's next call on the current stream."""
        plan, device = self._plan, self._device
        if not self._is_kept or _is_capturing(device):
            return workspace_for(plan, device), counters_for(plan, device)
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        key = self._sizes, stream
        if (found := _kept.scratch.get(key)) is None:
            sums = _of_stream(self._sizes[0], device, stream, "sums")
            found = _kept.scratch[key] = sums, counters_for(plan, device)
        return found

    def kept(self) -> tuple[int, torch.Tensor | None, torch.Tensor | None]:
        """Returns the current stream, and the workspace and counters that the calling thread's next
        call on it may use too; each is None if none is kept."""
        stream = current_stream(self._device)
        if self._device.type != "cuda" or _is_capturing(self._device):
            return stream, None, None
        if not self._is_kept and self._plan.workspace_bytes > 0:
            return stream, None, None
        return stream, *self()


class _Aside:
    """Zeros on a device for calls under capture, which must not allocate any. Each piece is handed
    out once and is never reused, because nothing reports when a graph is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: list[torch.Tensor] = []  # pieces are cut from the last
        self._taken = 0  # bytes of the last chunk

    def refill(self, device: torch.device) -> None:
        """Sets more zeros aside; the calling thread must not be capturing.

        It waits for its own stream only, so that the zeros are there for graphs on any other;
        waiting for the device would end another thread's capture.
        """
        with self._lock:
            is_enough = self._chunks and self._taken < _ASIDE_BYTES // 2
            if is_enough or len(self._chunks) * _ASIDE_BYTES >= _MAX_ASIDE_BYTES:
                return
            chunk = torch.zeros(_ASIDE_BYTES, dtype=torch.uint8, device=device)
            torch.cuda.current_stream(device).synchronize()
            self._chunks.append(chunk)
            self._taken = 0

    def take(self, n_bytes: int) -> torch.Tensor | None:
        """Returns the next piece, or None if the last chunk has less left."""
        with self._lock:
            first, end = self._taken, self._taken + n_bytes
            if not self._chunks or end > _ASIDE_BYTES:
                return None
            self._taken = -(-end // _ASIDE_ALIGNMENT) * _ASIDE_ALIGNMENT
            return self._chunks[-1][first:end]


_aside: dict[torch.device, _Aside] = {}


def _kept_bytes(n_bytes: int) -> int:
    """Rounds up to a power of two, so that few sizes are kept."""
    return max(_MIN_COUNTER_BYTES, 1 << (n_bytes - 1).bit_length())


def current_stream(device: torch.device) -> int:
    """Returns the number of the stream to which launches on a device go now; 0 on a CPU."""
    return torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0


def is_kept(plan: Plan, device: torch.device) -> bool:
    """Returns whether the next call of this plan on the same stream may have the same workspace.

    The launches of a CUDA graph may run on any stream, beside any other work: each captured call
    gets a separate workspace, which the graph zeroes at every replay. On the emulator nothing is
    kept, because a fault would leave its workspace non-zero.
    """
    only_zeros = plan.workspace_bytes == plan.zeroed_bytes
    return only_zeros and device.type == "cuda" and not _is_capturing(device)


def _is_capturing(device: torch.device) -> bool:
    # Torch answers for the current device's stream only. The torch.cuda functions would first check
    # that CUDA is initialised, which a tensor on the device already proves.
    if device.index == torch._C._cuda_getDevice():
        return torch._C._cuda_isCurrentStreamCapturing()
    with torch.cuda.device(device):
        return torch._C._cuda_isCurrentStreamCapturing()


class _Thread:
    """Lives as long as the thread that made it, and then has the launch cache drop that thread's
    entries; the main thread does not, because it ends with the process."""

    def __init__(self) -> None:
        self._number = launch_cache.this_thread()
        self._drop = launch_cache.drop_thread
        self._is_main = threading.current_thread() is threading.main_thread()

    def __del__(self) -> None:
        if not self._is_main:
            self._drop(self._number)


class _Kept(threading.local):
    """The memory that the calling thread keeps. When the thread ends, the memory returns to torch's
    allocator, which gives it to the same stream only."""

    def __init__(self) -> None:
        self.memory: dict[tuple[int, torch.device, int, str], torch.Tensor] = {}
        # The memory that a ``Scratch`` returns, by its sizes, device and stream.
        self.scratch: dict[tuple[tuple[int, int, int], int], _Memory] = {}
        self.thread: _Thread | None = None  # made for the first tensor that is kept

    def clear(self) -> None:
        self.memory.clear()
        self.scratch.clear()


_kept = _Kept()


def _of_stream(
    n_bytes: int, device: torch.device, stream: int, purpose: str = "zeros"
) -> torch.Tensor:
    """Returns the tensor that this thread keeps for a purpose; it starts as zeros."""
    memory, key = _kept.memory, (n_bytes, device, stream, purpose)
    found = memory.get(key)
    if found is None:
        _kept.thread = _kept.thread or _Thread()
        found = memory[key] = _made_by_another_thread(n_bytes, device)
    return found


def _made_by_another_thread(n_bytes: int, device: torch.device) -> torch.Tensor:
    """Returns zeros on the current stream, allocated by another thread.

    While torch.compile warms up before a capture, its thread allocates from the graphs' memory
    pool, of which nothing may be kept. Another thread does not, nor does it have this thread's
    modes: inference mode, fake tensors, a default device. The caller may be about to capture, so
    more zeros are set aside too.
    """
    current = torch.cuda.current_stream(device)

    def make() -> torch.Tensor:
        with torch.cuda.stream(current):
            zeros = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
            _aside.setdefault(device, _Aside()).refill(device)
            return zeros

    with ThreadPoolExecutor(1) as others:
        return others.submit(make).result()
