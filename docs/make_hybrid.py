"""Write the tables and the picture of docs/hybrid.md; --check compares the tables alone.

A published count is in billions as its source prints it, rounded or cut. Ours must be less than one
of its last digit away.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from projector import project_performance, project_serving
from projector.config.model import parts_of
from projector.config.model_file import load_model
from projector.operations.counts import count_architecture
from projector.report.figures import figure as fig
from projector.units import MIB

PAGE = Path(__file__).parent / "hybrid.md"
MARKS = "<!-- models -->\n", "<!-- end of models -->\n"
PAIR_MARKS = "<!-- pair -->\n", "<!-- end of the pair -->\n"
PAIR = ("nemotron_h_8b", "llama3.1_8b")
TOKENS = tuple(1024 * 2**power for power in range(3, 9))


class Published(NamedTuple):
    """What a model's source says it has, in billions of parameters."""

    name: str
    total: str
    active: str = ""
    source: str = ""


CARD = "model card"
MODELS = (
    Published("nemotron_h_8b", "8", source="name"),
    Published("nemotron_h_47b", "47", source="name"),
    Published("nemotron_h_56b", "56", source="name"),
    Published("nemotron_nano_9b_v2", "8.9", source=CARD),
    Published("nemotron_nano_12b_v2", "12.3", source=CARD),
    Published("nemotron3_nano_30b_a3b", "31.6", "3.6", "technical report, recalled"),
    Published("nemotron3_super_120b_a12b", "120.6", source="technical report, recalled"),
    Published("nemotron3_ultra_550b_a55b", "550", "55", "name"),
    Published("qwen3_next_80b_a3b", "80", source="name"),
    Published("qwen3.5_35b_a3b", "35", "3", "name"),
    Published("olmo_hybrid_7b", "7", source="name"),
    Published("kimi_linear_48b_a3b", "49", "3", f"{CARD}, recalled; the name says 48"),
    Published("minimax_text_01", "456", source=CARD),
    Published("jamba_v0.1", "52", "12", "arXiv 2403.19887"),
    Published("jamba1.5_large", "398", "94", "arXiv 2408.12570"),
    Published("bamba_9b", "9.78", source="foundation-model-stack/bamba README.md"),
    Published("granite4_h_small", "32", "9", CARD),
    Published("granite4_h_tiny", "7", "1", CARD),
    Published("granite4_h_micro", "3", source=CARD),
    Published("falcon_h1_0.5b", "0.521", source="arXiv 2507.22448, recalled"),
    Published("falcon_h1_1.5b_deep", "1.555", source="arXiv 2507.22448, recalled"),
    Published("falcon_h1_7b", "7.59", source="arXiv 2507.22448, recalled"),
    Published("falcon_h1_34b", "33.6", source="arXiv 2507.22448, recalled"),
    Published("mamba_2.8b", "2.8", source="name"),
    Published("falcon_mamba_7b", "7.27", source=f"{CARD}, recalled"),
    Published("mamba2_2.7b", "2.7", source="name"),
    Published("rwkv7_0.4b", "0.45", source="arXiv 2503.14456, recalled"),
    Published("rwkv7_1.5b", "1.53", source="arXiv 2503.14456, recalled"),
    Published("rwkv7_2.9b", "2.95", source="arXiv 2503.14456, recalled"),
    Published("lfm2_350m", "0.354483968", source=CARD),
    Published("lfm2_700m", "0.742489344", source=CARD),
    Published("lfm2_1.2b", "1.170340608", source=CARD),
    Published("lfm2_2.6b", "2.569272320", source=CARD),
    Published("lfm2_8b_a1b", "8.3", "1.5", "arXiv 2511.23404"),
    Published("lfm2_24b_a2b", "24", "2.3", "announcement"),
)


def _row(one: Published) -> str:
    model = load_model(one.name)
    counts = count_architecture(model)
    layers: dict[str, int] = {}
    for kind in model.layer_kinds:
        mixer = " beside ".join(parts_of(kind)[0])
        if mixer:
            layers[mixer] = layers.get(mixer, 0) + 1
    mixers = ", ".join(f"{count} {mixer}" for mixer, count in layers.items())
    total, active = counts.parameters_total / 1e9, counts.parameters_active / 1e9
    digits = len(one.total.partition(".")[2])
    if abs(total - float(one.total)) >= 10.0**-digits:
        raise SystemExit(f"{one.name} has {total} billions of parameters, not {one.total}")
    ours = f"{total:.{max(2, digits)}f}" + (f" ({active:.2f})" if model.moe else "")
    theirs = one.total + (f" ({one.active})" if one.active else "")
    return f"| `{one.name}` | {mixers} | {ours} | {theirs} | {one.source} |"


def models() -> str:
    """Return the table of models, a row each."""
    lines = [
        "| model | mixers | billions of parameters (active) | published | by |",
        "|---|---|---|---|---|",
        *map(_row, MODELS),
    ]
    return "\n".join(lines) + "\n"


def lengths() -> dict[str, list[tuple[float, float, float]]]:
    """Return tokens/s/GPU of training, ms a token and MiB of a sequence, by model and length."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for name in PAIR:
        model = load_model(name)
        for tokens in TOKENS:
            training = project_performance(
                {
                    "model": model,
                    "parallelism": {"tp": 2, "cp": max(1, tokens // 32768)},
                    "training": {
                        "micro_batch_size": 1,
                        "global_batch_size": 64,
                        "seq_length": tokens,
                        "recompute": "full",
                    },
                    "cluster": {"device": "h100", "nodes": 2},
                }
            )
            serving = project_serving(model, "b300", batch=4, context=tokens, output=1)
            held = serving.kv_cache_bytes / 4 / MIB
            found.setdefault(model.name, []).append(
                (training.tokens_per_s_per_gpu, 1e3 * serving.tpot_s, held)
            )
    return found


def compared(found: Mapping[str, Sequence[tuple[float, float, float]]]) -> str:
    """Return the table of the pair, a row a length."""
    lines = [
        f"| tokens; {' / '.join(found)} | trained tokens/s/GPU | ms a decoded token | held, MiB |",
        "|---|---|---|---|",
    ]
    for tokens, *pair in zip(TOKENS, *found.values(), strict=True):
        cells = zip(*pair, strict=True)
        texts = (
            " / ".join(f"{value:{form}}" for value in cell)
            for cell, form in zip(cells, (",.0f", ".2f", ",.0f"), strict=True)
        )
        lines.append(f"| {tokens // 1024}k | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def picture(found: Mapping[str, Sequence[tuple[float, float, float]]]) -> Any:
    """Draw the pair over the length of a sequence."""
    figure = fig.new_figure(11.0, 3.9)
    panels = figure.subplots(1, 3)
    titles = ("training, tokens/s/GPU", "decoding, ms a token", "held for a sequence, MiB")
    for place, (axes, title) in enumerate(zip(panels, titles, strict=True)):
        for (name, rows), colour in zip(found.items(), fig.PALETTE, strict=False):
            values = [row[place] for row in rows]
            axes.plot(TOKENS, values, marker="o", color=colour, label=name)
        axes.set(title=title, xlabel="tokens of a sequence", xscale="log", yscale="log")
        axes.set_xticks(TOKENS, [f"{tokens // 1024}k" for tokens in TOKENS], minor=False)
        axes.set_xticks([], minor=True)
        low, high = axes.get_ylim()
        ticks = [
            digit * 10**power for power in range(6) for digit in (1, 2, 3, 5)
            if low < digit * 10**power < high
        ]  # fmt: skip
        axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.set_yticks([], minor=True)
    panels[0].legend(frameon=False)
    return figure


def main() -> int:
    """Write the page, or say whether it is current."""
    text = page = PAGE.read_text(encoding="utf-8")
    found = lengths()
    for (begin, end), table in ((MARKS, models()), (PAIR_MARKS, compared(found))):
        head, _, rest = page.partition(begin)
        _, _, tail = rest.partition(end)
        page = f"{head}{begin}\n{table}\n{end}{tail}"
    if "--check" in sys.argv:
        return int(page != text)
    PAGE.write_text(page, encoding="utf-8")
    fig.save_figure(PAGE.parent / "figures" / "hybrid.png", lambda: picture(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
