"""A small Llama on the CPU, profiled and aligned: with modules, without, and with checkpoints."""

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from torch import nn  # noqa: E402
from torch.profiler import ProfilerActivity, profile, record_function  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from projector.trace.activity import BACKWARD, FORWARD, GEMM, OPTIMIZER  # noqa: E402
from projector.trace.alignment import align  # noqa: E402
from projector.trace.read import load_trace  # noqa: E402

LAYERS, PRODUCTS = 3, 7


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            each(x).unflatten(-1, (2, -1)).transpose(1, 2) for each in (self.q, self.k, self.v)
        )
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.up = (nn.Linear(width, 64, bias=False) for _ in range(2))
        self.down = nn.Linear(64, width, bias=False)

    def forward(self, x):
        with record_function("f_mlp_gp"):
            gate = self.gate(x)
        return self.down(nn.functional.silu(gate) * self.up(x))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention_norm, self.mlp_norm = Norm(width), Norm(width)
        self.attention, self.mlp = Attention(width), Mlp(width)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self, reentrant=None, width=32):
        super().__init__()
        self.embedding = nn.Embedding(64, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(LAYERS))
        self.norm, self.head = Norm(width), nn.Linear(width, 64, bias=False)
        self.reentrant = reentrant

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            again = self.reentrant is not None
            x = checkpoint(layer, x, use_reentrant=self.reentrant) if again else layer(x)
        return self.head(self.norm(x))


def profiled(path, reentrant=None, modules=False, steps=2):
    """Profile steps of training, without any range that counts them."""
    torch.set_num_threads(1)
    model = Llama(reentrant)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 64, (2, 16))
    with profile(activities=[ProfilerActivity.CPU], with_stack=modules) as profiler:
        for _ in range(steps):
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    profiler.export_chrome_trace(str(path))
    return align(load_trace(path))


def products(activities, **where):
    """Return how many matrix products each layer has, the first number those of none."""
    chosen = activities.type == GEMM
    for column, value in where.items():
        chosen &= getattr(activities, column) == value
    return np.bincount(activities.layer[chosen] + 1, minlength=LAYERS + 1).tolist()


@pytest.mark.parametrize("modules", [False, True])
def test_layers_and_iterations_of_a_recorded_network(tmp_path, modules):
    a = profiled(tmp_path / "trace.json", modules=modules)
    assert a.on_host
    assert set(a.iteration.tolist()) <= {-1, 0, 1}
    assert any("layers were inferred" in note for note in a.notes) is not modules
    for iteration in (0, 1):
        own = {"iteration": iteration}
        assert products(a, phase=FORWARD, **own) == [1, *[PRODUCTS] * LAYERS]
        assert products(a, phase=BACKWARD, **own) == [2, *[2 * PRODUCTS] * LAYERS]
        assert products(a, phase=OPTIMIZER, **own) == [0] * (LAYERS + 1)
    named = {a.operations[row] for row in a.operation[a.type == GEMM]}
    assert {"f_mlp_gp", "b_mlp_gp"} <= named
    if modules:
        assert {"Attention.Linear[3]", "Mlp.Linear[1]"} <= named


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_of_both_kinds_are_recomputation(tmp_path, reentrant):
    a = profiled(tmp_path / "trace.json", reentrant, steps=1)
    again = products(a, recompute=True)
    assert again[0] == 0
    # One kind stops once the last saved tensor is there again, which the last product is not.
    assert set(again[1:]) <= {PRODUCTS - 1, PRODUCTS}
    assert products(a, phase=BACKWARD, recompute=False) == [2, *[2 * PRODUCTS] * LAYERS]
    assert products(a, phase=FORWARD) == [1, *[PRODUCTS] * LAYERS]
