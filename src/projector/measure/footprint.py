"""How much memory something takes: of a GPU's allocator, or of tracked tensors on a CPU.

A GPU's allocator counts what is allocated and what it has reserved. A CPU has no such allocator:
there every tensor that torch's dispatcher makes is followed until its storage is let go, and the
resident memory of the process stands beside it. What an operator takes within itself is seen in the
second alone.
"""

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, Self

from projector.measure.parts import Tensor, Torch


class Meter(Protocol):
    """Counts from its beginning to its end."""

    def __enter__(self) -> Any:
        """Begin."""
        ...

    def __exit__(self, *error: object) -> None:
        """End."""
        ...

    def numbers(self) -> dict[str, float]:
        """Return what was counted, by names of `Outcome.numbers`."""
        ...


def meter(torch: Torch, device: Any) -> Meter:
    """Return what counts on a device."""
    return _of_allocator(torch, device) if device.type == "cuda" else _of_tensors(torch)


def _of_allocator(torch: Torch, device: Any) -> Meter:
    cuda = torch.cuda

    class Allocator:
        """Peaks of the caching allocator beyond what was held before."""

        def __enter__(self) -> Self:
            cuda.synchronize(device)
            cuda.empty_cache()
            cuda.reset_peak_memory_stats(device)
            self.before = cuda.memory_allocated(device), cuda.memory_reserved(device)
            return self

        def __exit__(self, *error: object) -> None:
            cuda.synchronize(device)
            self.after = cuda.max_memory_allocated(device), cuda.max_memory_reserved(device)
            free, total = cuda.mem_get_info(device)
            self.outside = max(0, total - free - cuda.memory_reserved(device))

        def numbers(self) -> dict[str, float]:
            return {
                "peak_allocated_bytes": float(self.after[0] - self.before[0]),
                "peak_reserved_bytes": float(self.after[1] - self.before[1]),
                # The context, communicators, and what other processes hold.
                "outside_allocator_bytes": float(self.outside),
            }

    return Allocator()


def _of_tensors(torch: Torch) -> Meter:
    mode: Any = torch.utils._python_dispatch.TorchDispatchMode  # noqa: SLF001
    leaves = torch.utils._pytree.tree_leaves  # noqa: SLF001

    class Tracked(mode):
        """Follows every storage that operators make."""

        def __enter__(self) -> Any:
            self.live: dict[int, int] = {}
            self.held = self.peak = 0
            self.resident_before = _resident(reset=True)
            return super().__enter__()

        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            self.resident_after = _resident_peak()

        def __torch_dispatch__(
            self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            for leaf in leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self.add(leaf)
            return out

        def add(self, tensor: Tensor) -> None:
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()  # noqa: SLF001
            if key in self.live or size == 0:
                return
            self.live[key] = size
            self.held += size
            self.peak = max(self.peak, self.held)
            weakref.finalize(storage, self.drop, key)

        def drop(self, key: int) -> None:
            self.held -= self.live.pop(key, 0)

        def numbers(self) -> dict[str, float]:
            # A CPU's allocator hands memory back at once, so that it reserves nothing more.
            found = {
                "peak_allocated_bytes": float(self.peak), "peak_reserved_bytes": float(self.peak)
            }  # fmt: skip
            if self.resident_before is not None and self.resident_after is not None:
                grown = max(0, self.resident_after - self.resident_before)
                found["peak_resident_bytes"] = float(grown)
            return found

    made: Meter = Tracked()
    return made


def _status(field: str) -> int | None:
    """Return one line of this process's status in bytes, None where Linux does not say."""
    try:
        text = Path("/proc/self/status").read_text("utf-8")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None


def _resident(*, reset: bool) -> int | None:
    """Return resident memory; ``reset`` lets its peak begin anew."""
    if reset:
        try:
            Path("/proc/self/clear_refs").write_text("5", "utf-8")
        except OSError:
            return None
    return _status("VmRSS")


def _resident_peak() -> int | None:
    return _status("VmHWM")


class SavedBytes:
    """Counts what autograd keeps for a backward, each storage once, weights left out."""

    def __init__(self, torch: Torch, weights: list[Tensor]) -> None:
        """Leave out what belongs to weights."""
        self._skip = {weight.untyped_storage().data_ptr() for weight in weights}
        self._sizes: dict[int, int] = {}
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda kept: kept)

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        pointer = storage.data_ptr()
        if pointer not in self._skip:
            self._sizes[pointer] = storage.nbytes()
        return tensor

    @property
    def total(self) -> int:
        """Bytes counted so far."""
        return sum(self._sizes.values())
