"""Layers, steps and copies as something that can be run and timed, over a torch passed in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from projector.measure.blocks import Columns
from projector.measure.comm import Comm, Group
from projector.measure.exchange import Ranks
from projector.measure.footprint import SavedBytes, meter
from projector.measure.layers import Delayed, Layer, build_layer, build_model
from projector.measure.pace import Runner, Seconds
from projector.measure.parts import Kit, Tensor
from projector.measure.stopwatch import KernelRunner, PartsRunner, Stopwatch
from projector.measure.task import CopyProgram, LayerProgram, LayerSpec, StepProgram

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
        """Make a main gradient for each weight of each layer."""
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
        """Make input, gradient of the output and main gradients."""
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
        """Make layers, masters and the optimizer."""
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


def prepare_step(bench: Bench, program: StepProgram) -> Prepared:
    """Make a step; its memory was counted before, see `step_memory`."""
    runner = StepRunner(bench, program)
    return Prepared(runner, runner.backend)


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
