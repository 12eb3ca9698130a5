"""The global memory that some calls need beside their tensors.

What is kept between calls belongs to one thread and one stream: the launches of a thread on a
stream run one after the other, whatever plans they are of. Those of two threads on one stream may
take turns within a plan of two launches, as libraries release the GIL: what one keeps for its
second launch, the other would write.
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
# Set aside for what graphs count in, so much at a time, and of each device at most.
_ASIDE_BYTES, _MAX_ASIDE_BYTES, _ASIDE_ALIGNMENT = 1 << 20, 64 << 20, 256

FRESH = -1  # in place of a stream: a workspace that was made for one call

_Memory = tuple[torch.Tensor | None, torch.Tensor | None]  # a workspace, and counters


def workspace_for(plan: Plan, device: torch.device) -> torch.Tensor | None:
    """Returns what one call with this plan needs on the current stream of ``device``; None for
    nothing.

    Zeros that a call leaves zero are kept. What is more than such zeros comes from torch's
    allocator for each call.
    """
    n_bytes = plan.workspace_bytes
    if n_bytes == 0:
        return None
    if is_kept(plan, device):
        # The stream's number: torch.cuda.current_stream would make an object around it first.
        return _of_stream(n_bytes, device, torch._C._cuda_getCurrentRawStream(device.index))
    workspace = torch.empty(n_bytes, dtype=torch.uint8, device=device)
    if plan.zeroed_bytes > 0:
        workspace[: plan.zeroed_bytes].zero_()
    return workspace


def kept_workspace(plan: Plan, device: torch.device) -> torch.Tensor | None:
    """Returns what this thread's calls on the current stream may have as a workspace without
    zeros, of as much as one with this plan needs, or a little more; None: nothing is kept for
    it."""
    n_bytes = plan.workspace_bytes
    is_for_hand_over = 0 < n_bytes <= _MAX_KEPT_BYTES and plan.zeroed_bytes == 0
    if not is_for_hand_over or device.type != "cuda" or _is_capturing(device):
        return None
    return _of_stream(_kept_bytes(n_bytes), device, current_stream(device), "sums")


def counters_for(plan: Plan, device: torch.device) -> torch.Tensor | None:
    """The zeros that one call with this plan counts in, on the current stream; None for none.

    A call leaves them zero: they are kept, as ``workspace_for`` keeps such. No call stops half way
    and leaves others behind: a GPU runs a launch to its end, or gives up the whole process. What a
    CUDA graph counts in is its own, because it may be replayed on any stream: of zeros that were
    set aside before, and where there are none, zeroed at every replay, which costs a launch.
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
    """What ``workspace_for`` and ``counters_for`` give to the calls of plans on a device that need
    no more than one does.

    A workspace of no more than ``_MAX_KEPT_BYTES`` is kept as its counters are, for torch's
    allocator takes as long as a third of the call: nobody else reads what a launch leaves there.
    """

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self._plan, self._device = plan, device
        self._is_kept = 0 < plan.workspace_bytes <= _MAX_KEPT_BYTES and device.type == "cuda"
        n_counters = plan.counter_bytes and _kept_bytes(plan.counter_bytes)
        self._sizes = _kept_bytes(plan.workspace_bytes), n_counters, device.index

    def that_also_serves(self, plan: Plan) -> Scratch:
        """For calls of another plan, too."""
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
        """The current stream, and the workspace and counters that the calling thread's next call on
        it may have, too; None: nothing is kept."""
        stream = current_stream(self._device)
        if self._device.type != "cuda" or _is_capturing(self._device):
            return stream, None, None
        if not self._is_kept and self._plan.workspace_bytes > 0:
            return stream, None, None
        return stream, *self()


class _Aside:
    """Zeros of a device for calls that are captured, which must not make any then. Each piece is
    given once, and stays: a graph holds no tensor, and nobody tells when it is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: list[torch.Tensor] = []  # pieces are of the last
        self._taken = 0  # bytes of that

    def refill(self, device: torch.device) -> None:
        """Sets more aside; a thread calls it that captures nothing.

        It waits for its own stream, because graphs may begin on any other; to wait for the device
        would end what another thread captures.
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
        """Returns none: there are not as many."""
        with self._lock:
            first, end = self._taken, self._taken + n_bytes
            if not self._chunks or end > _ASIDE_BYTES:
                return None
            self._taken = -(-end // _ASIDE_ALIGNMENT) * _ASIDE_ALIGNMENT
            return self._chunks[-1][first:end]


_aside: dict[torch.device, _Aside] = {}


def _kept_bytes(n_bytes: int) -> int:
    """So that few sizes are kept."""
    return max(_MIN_COUNTER_BYTES, 1 << (n_bytes - 1).bit_length())


def current_stream(device: torch.device) -> int:
    """Returns the number of the stream to which launches on a device go now; 0 on a CPU."""
    return torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0


def is_kept(plan: Plan, device: torch.device) -> bool:
    """Returns whether the next call of this plan on the same stream may have the same workspace.

    The launches of a CUDA graph may run on any stream, beside anything else: each call that is
    captured gets its own, which the graph zeroes at every replay. A fault on the emulator leaves
    its workspace as it was then.
    """
    only_zeros = plan.workspace_bytes == plan.zeroed_bytes
    return only_zeros and device.type == "cuda" and not _is_capturing(device)


def _is_capturing(device: torch.device) -> bool:
    # Torch tells it of the current device's stream only. Its functions of torch.cuda would first
    # make sure that CUDA is initialised, which a tensor there already says.
    if device.index == torch._C._cuda_getDevice():
        return torch._C._cuda_isCurrentStreamCapturing()
    with torch.cuda.device(device):
        return torch._C._cuda_isCurrentStreamCapturing()


class _Thread:
    """Lives as long as the thread that made it, and then has the launch cache drop what it keeps
    for that; but for the main thread, which ends with all others."""

    def __init__(self) -> None:
        self._number = launch_cache.this_thread()
        self._drop = launch_cache.drop_thread
        self._is_main = threading.current_thread() is threading.main_thread()

    def __del__(self) -> None:
        if not self._is_main:
            self._drop(self._number)


class _Kept(threading.local):
    """What the calling thread keeps. When the thread ends it goes to torch's allocator, which gives
    it to nobody but the stream that had it."""

    def __init__(self) -> None:
        self.memory: dict[tuple[int, torch.device, int, str], torch.Tensor] = {}
        # What a ``Scratch`` gives of it, by its sizes, the device and the stream.
        self.scratch: dict[tuple[tuple[int, int, int], int], _Memory] = {}
        self.thread: _Thread | None = None  # of the first thing that is kept

    def clear(self) -> None:
        self.memory.clear()
        self.scratch.clear()


_kept = _Kept()


def _of_stream(
    n_bytes: int, device: torch.device, stream: int, purpose: str = "zeros"
) -> torch.Tensor:
    """Returns what this thread keeps for a purpose, made as zeros."""
    memory, key = _kept.memory, (n_bytes, device, stream, purpose)
    found = memory.get(key)
    if found is None:
        _kept.thread = _kept.thread or _Thread()
        found = memory[key] = _made_by_another_thread(n_bytes, device)
    return found


def _made_by_another_thread(n_bytes: int, device: torch.device) -> torch.Tensor:
    """Zeros on the current stream.

    What torch.compile tries out before it captures it allocates, as all of its thread then does,
    from the graphs' memory, of which nothing may be kept. Nor does another thread know of the modes
    that this one is in: of inference, of fake tensors, of a default device. Whoever is here may be
    about to capture: more is set aside for that.
    """
    current = torch.cuda.current_stream(device)

    def make() -> torch.Tensor:
        with torch.cuda.stream(current):
            zeros = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
            _aside.setdefault(device, _Aside()).refill(device)
            return zeros

    with ThreadPoolExecutor(1) as others:
        return others.submit(make).result()
