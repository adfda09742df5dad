"""Record a few steps of a small network, on a GPU or else on the CPU, and say where the time went.

python examples/explain_a_run.py [FOLDER]         the trace goes to FOLDER, by default out/trace

It needs the extras `torch` and `trace`. Perfetto (https://ui.perfetto.dev) opens the trace too.
"""

import sys

import projector as pj
from projector.distribution import install_command
from projector.errors import ProjectorError

try:
    import torch
except ImportError:
    sys.exit(
        f"error: this example needs the extras torch and trace: {install_command('torch', 'trace')}"
    )

HIDDEN, LAYERS, TOKENS, STEPS = 256, 4, 512, 8


def network() -> torch.nn.Module:
    """Return a stack of feed-forward layers."""
    layers = [
        torch.nn.Sequential(
            torch.nn.LayerNorm(HIDDEN),
            torch.nn.Linear(HIDDEN, 4 * HIDDEN),
            torch.nn.GELU(),
            torch.nn.Linear(4 * HIDDEN, HIDDEN),
        )
        for _ in range(LAYERS)
    ]
    return torch.nn.Sequential(*layers)


def train(folder: str) -> None:
    """Train, and record all steps but the first three."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    with pj.record_trace(folder, warmup=3, active=STEPS - 3) as recorder:
        for _ in range(STEPS):
            batch = torch.randn(TOKENS, HIDDEN, device=device)
            loss = (model(batch) - batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step()


def main(folder: str) -> None:
    """Record, then explain."""
    train(folder)
    run = pj.load_trace(folder)
    for rank in run.summary(tokens=TOKENS).rows:
        print(
            f"rank {rank['rank']}: {rank['span_ns'] / 1e6:.1f} ms, of which "
            f"{rank['compute_ns'] / rank['span_ns']:.0%} computing and "
            f"{rank['idle_ns'] / rank['span_ns']:.0%} idle"
        )
    for row in run.operations(by="phase,type").rows[:3]:
        print(f"{row['phase']} {row['type']}: {row['share']:.0%} of the work")
    late = run.launch().rows[0]
    print(
        f"the longest wait is before {late['operation']} of the {late['phase']}: "
        f"{late['launch_ns']['median'] / 1e6:.3f} ms a step"
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "out/trace")
    except (ProjectorError, OSError) as error:
        sys.exit(f"error: {error}")
