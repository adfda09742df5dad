"""A small Megatron-LM job, and how tests read it."""

from projector.config.formats import megatron

SMALL = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --vocab-size 50257 "
    "--micro-batch-size 1 --global-batch-size 8 --seq-length 2048 --bf16 "
)


def read_megatron(text, *, name=""):
    """Return job, warnings and origins."""
    return megatron.read_megatron(text, name=name)[:3]


def read(extra: str = "", base: str = SMALL):
    return read_megatron(base + extra, name="job")
