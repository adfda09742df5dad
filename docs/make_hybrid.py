"""Write the table of models of docs/hybrid.md; --check only compares.

A published count is in billions as its source prints it, rounded or cut. Ours must be less than one
of its last digit away.
"""

import sys
from pathlib import Path
from typing import NamedTuple

from projector.config.model import parts_of
from projector.config.model_file import load_model
from projector.operations.counts import count_architecture

PAGE = Path(__file__).parent / "hybrid.md"
BEGIN, END = "<!-- models -->\n", "<!-- end of models -->\n"


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


def table() -> str:
    """Return the table, a row a model."""
    lines = [
        "| model | mixers | billions of parameters (active) | published | by |",
        "|---|---|---|---|---|",
        *map(_row, MODELS),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, or say whether it is current."""
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    page = f"{head}{BEGIN}\n{table()}\n{END}{tail}"
    if "--check" in sys.argv:
        return int(page != text)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
