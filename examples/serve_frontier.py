"""Which device serves a model best at the speed that users want, and how it is split.

python examples/serve_frontier.py llama3.1_70b 30
"""

import sys

import projector as pj
from projector.errors import ProjectorError

DEVICES = ("h100", "h200", "mi300x", "b200")


def main(model: str, tokens_per_s: float) -> None:
    """Print the most tokens a second and GPU of every device, at a speed for each user."""
    print(f"{model}, prompts of 2,048 tokens, 512 generated, {tokens_per_s:g} tokens/s/user")
    for device in DEVICES:
        found = pj.project_serving(
            model, device, dtype="fp8", context=2048, output=512, front=True, gpus=8
        ).front
        points = [found.point(row) for row in found.rows.tolist()]
        fast = [point for point in points if point["tokens_per_s_per_user"] >= tokens_per_s]
        if not fast:
            print(f"{device:8} no split is as fast")
            continue
        best = max(fast, key=lambda point: point["tokens_per_s_per_gpu"])
        split = " ".join(f"{name}={value}" for name, value in best["overrides"].items())
        print(f"{device:8} {best['tokens_per_s_per_gpu']:7,.0f} tokens/s/GPU  {split}")


if __name__ == "__main__":
    model, speed, *_ = [*sys.argv[1:], *("llama3.1_70b", "30")[len(sys.argv) - 1 :]]
    try:
        main(model, float(speed))
    except (ProjectorError, ValueError) as error:
        sys.exit(f"error: {error}")
