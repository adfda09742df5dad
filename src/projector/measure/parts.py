"""Pieces that layers and single operators are made of, over a torch that is passed in.

Shapes: t tokens of a rank inside the tensor-parallel region, b sequences, s tokens of one. Tokens
lie sequence after sequence, so that a tensor of rows can be divided over ranks and joined again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Torch = Any
Tensor = Any

WIDE = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""Matrix types of torch; narrower ones compute beside BF16."""

NORM_EPSILON = 1e-6
ROPE_BASE = 10_000.0

DRAWN = 1 << 20
"""Numbers that tensors of a CPU are made of; larger ones repeat them."""

STRIDE = 7919
"""How far apart two tensors begin in them: a prime, so that many differ."""


class UnsupportedError(Exception):
    """What this build of torch, or this device, cannot run; says why."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of torch says that memory ran out."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(
        words in text for words in ("out of memory", "not enough memory", "can't allocate memory")
    )


@dataclass(slots=True)
class Kit:
    """What everything is made with: torch, a device and seeded random numbers."""

    torch: Torch
    device: Any
    seed: int = 0
    made_bytes: int = 0
    """Of all random tensors so far."""
    _drawn: dict[Any, Tensor] = field(default_factory=dict)
    """Numbers that tensors of a CPU are made of, by type."""

    def __post_init__(self) -> None:
        """Draw them, before anybody counts memory."""
        if self.device.type == "cpu":
            drawn = self.torch.empty(2 * DRAWN).normal_(generator=self._generator(self.seed))
            for name in dict.fromkeys(WIDE.values()):
                dtype = getattr(self.torch, name)
                self._drawn[dtype] = drawn.to(dtype)

    def wide_type(self, dtype: str) -> Any:
        """Return torch's type for a matrix type, BF16 for those of fewer than 16 bits."""
        return getattr(self.torch, WIDE.get(dtype, "bfloat16"))

    def random(self, *shape: int, dtype: Any, scale: float = 1.0) -> Tensor:
        """Return normal random numbers, others on each call: zeros would draw less power."""
        values = self.torch.empty(shape, dtype=dtype, device=self.device)
        self.made_bytes += values.nbytes
        self.seed += 1
        if dtype in self._drawn:
            return self._repeat(values, scale)
        return values.normal_(0.0, scale, generator=self._generator(self.seed))

    def _generator(self, seed: int) -> Any:
        return self.torch.Generator(device=self.device).manual_seed(seed)

    def _repeat(self, values: Tensor, scale: float) -> Tensor:
        """Fill a tensor with numbers drawn once, beginning elsewhere each time.

        A CPU takes ten times as long to draw as to copy, and there are hundreds of operands.
        """
        start = self.seed * STRIDE % DRAWN
        source = self._drawn[values.dtype][start : start + DRAWN]
        for part in values.view(-1).split(DRAWN):
            part.copy_(source[: part.numel()])
        return values if scale == 1.0 else values.mul_(scale)

    def integers(self, *shape: int, below: int) -> Tensor:
        """Return random whole numbers from 0 on."""
        self.seed += 1
        generator = self._generator(self.seed)
        return self.torch.randint(below, shape, generator=generator, device=self.device)


def norm(torch: Torch, x: Tensor, weight: Tensor, bias: Tensor | None, *, eager: bool) -> Tensor:
    """Normalise rows: by their root mean square, or with a bias by mean and variance."""
    functional = torch.nn.functional
    if bias is not None:
        return functional.layer_norm(x, (x.shape[-1],), weight, bias, NORM_EPSILON)
    if not eager and hasattr(functional, "rms_norm"):
        return functional.rms_norm(x, (x.shape[-1],), weight, NORM_EPSILON)
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + NORM_EPSILON)
    return scaled.to(x.dtype) * weight


def rotations(kit: Kit, tokens: int, width: int, dtype: Any) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of a rotary embedding, [tokens, width] each."""
    torch = kit.torch
    steps = torch.arange(0, width, 2, device=kit.device, dtype=torch.float32) / width
    angles = torch.outer(
        torch.arange(tokens, device=kit.device, dtype=torch.float32), ROPE_BASE**-steps
    )
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(torch: Torch, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate halves of the heads of [b, heads, s, width]."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def activate(torch: Torch, x: Tensor, *, gated: bool) -> Tensor:
    """Apply SwiGLU to gate and input side by side, or GELU where there is no gate."""
    functional = torch.nn.functional
    if not gated:
        return functional.gelu(x, approximate="tanh")
    gate, values = x.chunk(2, dim=-1)
    return functional.silu(gate) * values


IN_PLACE_BYTES = 64 * 2**20
"""FP32 copies of logits that an in-place loss makes at once."""


def plain_loss(torch: Torch, logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over FP32 copies of the logits [t, vocabulary]."""
    return torch.nn.functional.cross_entropy(logits.float(), targets)


def in_place_loss(torch: Torch) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a cross-entropy that puts the gradient in the place of the 16-bit logits.

    The forward takes blocks of rows, so that no FP32 copy of all logits is ever made; the backward
    scales what lies there. Torch has no single kernel for it.
    """

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
            rows, columns = logits.shape
            block = max(1, IN_PLACE_BYTES // (4 * columns))
            gradient, total = logits.detach(), logits.new_zeros((), dtype=torch.float32)
            for first in range(0, rows, block):
                part = gradient[first : first + block]
                wanted = targets[first : first + block, None]
                log_share = torch.log_softmax(part.float(), dim=-1)
                total -= log_share.gather(1, wanted).sum()
                share = log_share.exp_()
                share.scatter_add_(1, wanted, torch.full_like(wanted, -1, dtype=share.dtype))
                part.copy_(share.div_(rows))
            ctx.save_for_backward(gradient)
            return total / rows

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
            (kept,) = ctx.saved_tensors
            return kept * gradient.to(kept.dtype), None

    apply: Callable[[Tensor, Tensor], Tensor] = Loss.apply
    return apply


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """A way to compute softmax(QK')V that this device has."""

    name: str
    run: Callable[[Tensor, Tensor, Tensor], Tensor]
    """From [b, heads, s, d] of queries, keys and values to [b, heads, s, d_v]."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What decides which kernels can serve an attention."""

    heads: int
    key_heads: int
    queries: int
    keys: int
    d_qk: int
    d_v: int
    causal: bool
    window: int
    dtype: Any


FUSED = (("flash", "cudnn"), ("efficient",), ("math",))
ANY = "as torch chooses"
ORDERS = {"flash": FUSED, "sdpa": ((ANY,),), "cudnn": (("cudnn",),), "math": (("math",),)}
"""Backends that each wish tries. The first that runs is taken; of one group those that take the
tensors as they are come before those that need repeated keys or padded values."""


def choose_attention(kit: Kit, shape: AttentionShape, wanted: str) -> AttentionKernel:
    """Return the first kernel that runs forward and backward on a short sequence.

    A backend that takes no groups of heads is given repeated keys, and one that takes no narrower
    values is given padded ones; the name says so. The package ``flash_attn`` comes first where
    it is installed and flash is wanted.
    """
    last = "no backend"
    candidates = [
        *(_of_package(kit, shape) if wanted == "flash" else ()),
        *(
            _of_torch(kit, shape, name, repeat=repeat, pad=pad)
            for names in ORDERS.get(wanted, FUSED)
            for pad in ((False, True) if shape.d_v < shape.d_qk else (False,))
            for repeat in ((False, True) if shape.key_heads < shape.heads else (False,))
            for name in names
        ),
    ]
    for kernel in candidates:
        try:
            _try(kit, shape, kernel)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            last = str(error).splitlines()[0]
        else:
            return kernel
    raise UnsupportedError(f"no attention kernel runs here: {last}")


def _try(kit: Kit, shape: AttentionShape, kernel: AttentionKernel) -> None:
    """Run a kernel both ways on its full extents but one sequence of one group of heads."""
    groups = shape.heads // shape.key_heads
    query = kit.random(1, groups, shape.queries, shape.d_qk, dtype=shape.dtype).requires_grad_()
    key = kit.random(1, 1, shape.keys, shape.d_qk, dtype=shape.dtype).requires_grad_()
    value = kit.random(1, 1, shape.keys, shape.d_v, dtype=shape.dtype).requires_grad_()
    out = kernel.run(query, key, value)
    out.backward(kit.torch.zeros_like(out))


def _of_package(kit: Kit, shape: AttentionShape) -> tuple[AttentionKernel, ...]:
    if kit.device.type != "cuda":
        return ()
    try:
        from flash_attn import flash_attn_func
    except ImportError:
        return ()

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        parts = (part.transpose(1, 2) for part in (query, key, value))
        window = (shape.window - 1, 0) if shape.window else (-1, -1)
        return flash_attn_func(*parts, causal=shape.causal, window_size=window).transpose(1, 2)

    return (AttentionKernel("flash_attn", run),)


def _of_torch(
    kit: Kit, shape: AttentionShape, backend: str, *, repeat: bool, pad: bool
) -> AttentionKernel:
    torch = kit.torch
    attend = torch.nn.functional.scaled_dot_product_attention
    mask = _window_mask(kit, shape)
    grouped = {"enable_gqa": True} if shape.key_heads < shape.heads and not repeat else {}
    groups = shape.heads // shape.key_heads
    scale = shape.d_qk**-0.5

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        select_backend(torch, backend)
        if repeat:
            key = key.repeat_interleave(groups, dim=1)
            value = value.repeat_interleave(groups, dim=1)
        if pad:
            value = torch.nn.functional.pad(value, (0, shape.d_qk - shape.d_v))
        out = attend(
            query, key, value, attn_mask=mask, is_causal=shape.causal and mask is None,
            scale=scale, **grouped,
        )  # fmt: skip
        return out[..., : shape.d_v] if pad else out

    notes = [f"sdpa {backend}"]
    notes += ["keys repeated"] if repeat else []
    notes += ["values padded"] if pad else []
    notes += ["window as a mask"] if mask is not None else []
    return AttentionKernel(", ".join(notes), run)


def _window_mask(kit: Kit, shape: AttentionShape) -> Tensor | None:
    if not shape.window or shape.window >= shape.keys:
        return None
    torch = kit.torch
    rows = torch.arange(shape.queries, device=kit.device)[:, None]
    columns = torch.arange(shape.keys, device=kit.device)[None, :]
    return (columns <= rows) & (columns > rows - shape.window)


def select_backend(torch: Torch, backend: str) -> None:
    """Allow one backend of scaled-dot-product attention, or all, unless it is so already.

    The switches are global to a process; torch's context manager would set them at every call.
    """
    cuda = torch.backends.cuda
    if _selected.get(id(torch)) == backend:
        return
    cuda.enable_flash_sdp(backend in ("flash", ANY))
    cuda.enable_mem_efficient_sdp(backend in ("efficient", ANY))
    cuda.enable_math_sdp(backend in ("math", ANY))
    if hasattr(cuda, "enable_cudnn_sdp"):
        cuda.enable_cudnn_sdp(backend in ("cudnn", ANY))
    _selected[id(torch)] = backend


_selected: dict[int, str] = {}
