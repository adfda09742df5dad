"""Layers, steps and copies as something that can be run and timed, over a torch passed in.

How much memory something takes is told by a GPU's allocator, which counts what is allocated and
what it has reserved. A CPU has no such allocator: there every tensor that torch's dispatcher makes
is followed until its storage is let go, and the resident memory of the process stands beside it.
What an operator takes within itself is seen in the second alone.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from projector.measure.blocks import Columns
from projector.measure.comm import Comm, Group
from projector.measure.devices import status_bytes
from projector.measure.exchange import Ranks
from projector.measure.layers import Delayed, Layer, build_layer, build_model
from projector.measure.pace import KernelRunner, PartsRunner, Runner, Seconds, Stopwatch
from projector.measure.parts import Kit, Tensor, Torch
from projector.measure.task import CopyProgram, LayerProgram, LayerSpec, StepProgram


class Meter(Protocol):
    """Counts from its beginning to its end."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: object) -> None: ...

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
            self.resident_before = _resident()
            return super().__enter__()

        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            self.resident_after = status_bytes("VmHWM")

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


def _resident() -> int | None:
    """Return resident memory, whose peak begins anew; None where it cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5", "utf-8")
    except OSError:
        return None
    return status_bytes("VmRSS")


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


ADDS_NOTHING = 2
"""Code of ``accumulation`` where FSDP takes the gradients, so that none are added up."""

GROUPS: tuple[Group, ...] = ("tp", "etp", "cp", "ep")


@dataclass(slots=True)
class Bench:
    """What programs are measured with."""

    kit: Kit
    watch: Stopwatch
    ranks: Ranks

    def comm_of(self, spec: LayerSpec) -> Comm:
        """Return what a layer communicates through, by the degrees that it is split by."""
        columns = Columns(spec.columns)
        return self.ranks.comm({group: getattr(columns, group) for group in GROUPS})


@dataclass(slots=True)
class Prepared:
    """A program ready to run."""

    runner: Runner
    backend: str
    numbers: dict[str, float] = field(default_factory=dict)


def prepare_copy(bench: Bench, program: CopyProgram) -> Prepared:
    """Make a copy from one place of memory to another; half of the bytes is read, half written."""
    torch, kit = bench.kit.torch, bench.kit
    source = kit.random(max(1, program.bytes // 8), dtype=torch.float32)
    target = torch.empty_like(source)
    return Prepared(KernelRunner(bench.watch, [lambda: target.copy_(source)]), "torch.copy_")


class MainGradients:
    """Gradients of weights that add up over microbatches, as Megatron-LM keeps them.

    A hook adds the gradient of each weight to its main one as soon as it is there, and lets it go.
    Kernels that add within the GEMM are not torch's. Under FSDP nothing adds up: gradients are
    dropped, since what reduces them is a collective.
    """

    def __init__(self, torch: Any, layers: Sequence[Layer]) -> None:
        self.torch = torch
        self.of_weight: list[tuple[Tensor, Tensor]] = []
        self._hooks = []
        for layer in layers:
            c = layer.columns
            wide = torch.float32 if c.accumulate_bytes != 2 else torch.bfloat16
            for weight in layer.weights:
                if c.accumulation == ADDS_NOTHING:
                    main = None
                else:
                    main = torch.zeros_like(weight, dtype=wide)
                    self.of_weight.append((weight, main))
                self._hooks.append(weight.register_post_accumulate_grad_hook(_adder(main)))

    def clear(self) -> None:
        """Set all to zero, as after a step."""
        if self.of_weight:
            self.torch._foreach_zero_([main for _, main in self.of_weight])


def _adder(main: Tensor | None) -> Callable[[Tensor], None]:
    def add(weight: Tensor) -> None:
        if main is not None:
            main.add_(weight.grad)
        weight.grad = None

    return add


class LayerRunner:
    """Times forward and backward of a layer, and apart the gradient of its input alone.

    ``forward`` and ``backward`` are those of a training step: the backward computes the gradients
    of input and weights and adds the latter to the main gradients. Then the layer runs again with
    weights that want no gradient, and ``input_gradient`` is the backward of that;
    ``weight_gradient`` is what the whole backward took longer in the same sample. Layers whose
    input has no gradient, embeddings, have the first two alone.
    """

    def __init__(self, bench: Bench, layer: Layer) -> None:
        self.torch, self.layer = bench.kit.torch, layer
        self.x = layer.inputs()
        self.out: Tensor = None
        self.main = MainGradients(self.torch, [layer])
        self.gradient: Tensor = None
        both: list[tuple[str, Callable[[], object]]] = [
            ("forward", self.forward), ("backward", self.backward)
        ]  # fmt: skip
        self.has_input_gradient = bool(self.x.requires_grad)
        if self.has_input_gradient:
            both += [("", self.freeze), ("", self.forward), ("input_gradient", self.backward)]
            both += [("", self.thaw)]
        self.parts = PartsRunner(bench.watch, both)

    def forward(self) -> None:
        """Run the layer."""
        self.out = self.layer(self.x)

    def backward(self) -> None:
        """Run its backward, from a gradient of random numbers."""
        if self.gradient is None:
            self.gradient = self.torch.randn_like(self.out)
        self.out.backward(self.gradient)
        self.out = None
        if self.has_input_gradient:
            self.x.grad = None

    def freeze(self) -> None:
        """Let weights want no gradient."""
        for weight in self.layer.weights:
            weight.requires_grad_(requires_grad=False)

    def thaw(self) -> None:
        """Let them want one again."""
        for weight in self.layer.weights:
            weight.requires_grad_()

    def sample(self, runs: int) -> Seconds:
        """Return the mean seconds of each part."""
        try:
            seconds = self.parts.sample(runs)
        finally:
            self.thaw()
        if self.has_input_gradient:
            seconds["weight_gradient"] = seconds["backward"] - seconds["input_gradient"]
        return seconds


def prepare_layer(bench: Bench, program: LayerProgram) -> Prepared:
    """Make a layer; its memory was counted before, see `layer_memory`."""
    layer = build_layer(bench.kit, bench.comm_of(program.layer), program.layer)
    if program.delay_s:
        layer = Delayed(layer, program.delay_s, bench.watch.wait)
    return Prepared(LayerRunner(bench, layer), layer.backend)


def layer_memory(bench: Bench, program: LayerProgram) -> dict[str, float]:
    """Return what a layer takes by itself: weights, main gradients, input, one pass both ways."""
    counter = meter(bench.kit.torch, bench.kit.device)
    with counter:
        layer = build_layer(bench.kit, bench.comm_of(program.layer), program.layer)
        runner = LayerRunner(bench, layer)
        saved = SavedBytes(bench.kit.torch, layer.weights)
        with saved.hooks:
            runner.forward()
        runner.backward()
    return counter.numbers() | _sizes([layer], saved)


def _sizes(layers: Sequence[Layer], saved: SavedBytes) -> dict[str, float]:
    weights = [weight for layer in layers for weight in layer.weights]
    return {
        "saved_bytes": float(saved.total),
        "parameters": float(sum(weight.numel() for weight in weights)),
        "weight_bytes": float(sum(weight.nbytes for weight in weights)),
    }


class StepRunner:
    """Times a whole step of one microbatch: forward, backward and optimizer.

    Main gradients, master weights and moments are FP32 (main gradients as the job has them); the
    optimizer reads the main gradients, updates the masters with torch's fused kernel where it has
    one, copies them to the weights and clears the main gradients.
    """

    def __init__(self, bench: Bench, program: StepProgram) -> None:
        torch = self.torch = bench.kit.torch
        self.layers = build_model(bench.kit, bench.comm_of, program.layers)
        self.x = self.layers[0].inputs()
        self.main = MainGradients(torch, self.layers)
        self.weights = [weight for layer in self.layers for weight in layer.weights]
        self.masters = [weight.detach().float().clone() for weight in self.weights]
        self.backend = ", ".join(
            dict.fromkeys(note for layer in self.layers for note in layer.builder.notes)
        )
        self.optimizer = self._optimizer(program.optimizer)
        self.out: Tensor = None
        self.parts = PartsRunner(
            bench.watch,
            (("forward", self.forward), ("backward", self.backward), ("optimizer", self.update)),
        )

    def _optimizer(self, name: str) -> Any:
        optim = self.torch.optim
        made = optim.AdamW if name == "adam" else optim.SGD
        more = {} if name == "adam" else {"momentum": 0.9}
        for kind in ({"fused": True}, {"foreach": True}, {}):
            try:
                optimizer = made(self.masters, lr=1e-4, **more, **kind)
            except (RuntimeError, TypeError, ValueError):
                continue
            shown = ", ".join(kind) or "plain"
            self.backend += f", torch.optim.{made.__name__} ({shown})"
            return optimizer
        raise AssertionError

    def forward(self) -> None:
        """Run all layers."""
        out = self.x
        for layer in self.layers:
            out = layer(out)
        self.out = out

    def backward(self) -> None:
        """Run the backward of the loss, or of a sum where the model has no head."""
        out = self.out if self.out.dim() == 0 else self.out.float().sum()
        out.backward()
        self.out = None
        if self.x.requires_grad:
            self.x.grad = None

    def update(self) -> None:
        """Update all weights."""
        torch = self.torch
        main = {id(weight): gradient for weight, gradient in self.main.of_weight}
        for weight, master in zip(self.weights, self.masters, strict=True):
            gradient = main.get(id(weight))
            # Under FSDP there are no main gradients; reading any takes as long.
            master.grad = master if gradient is None else gradient.to(torch.float32)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self.weights, self.masters)
        self.main.clear()
        for layer in self.layers:
            layer.builder.refresh()

    def sample(self, runs: int) -> Seconds:
        """Return the mean seconds of each part and of all."""
        seconds = self.parts.sample(runs)
        return seconds | {"total": sum(seconds.values())}


def step_memory(bench: Bench, program: StepProgram) -> dict[str, float]:
    """Return what a step takes at its peak, all state included, in the second of two steps.

    The optimizer makes its moments in the first.
    """
    counter = meter(bench.kit.torch, bench.kit.device)
    with counter:
        runner = StepRunner(bench, program)
        for _ in range(2):
            saved = SavedBytes(bench.kit.torch, runner.weights)
            with saved.hooks:
                runner.forward()
            runner.backward()
            runner.update()
    state = 0.0
    for weight, main in runner.main.of_weight:
        state += weight.nbytes + main.nbytes
    state += sum(12.0 * master.numel() for master in runner.masters)
    return counter.numbers() | _sizes(runner.layers, saved) | {"states_bytes": state}


MEMORY: dict[str, Callable[[Bench, Any], dict[str, float]]] = {
    "layer": layer_memory,
    "step": step_memory,
}
"""What is counted by itself before anything is timed."""
