"""Specifications of tiny layers."""

from projector.measure.task import LayerSpec

BASE = {
    "micro_batch": 2, "seq": 32, "tp": 1, "cp": 1, "hidden": 64, "ffn": 96, "gated": 1,
    "heads": 4, "key_heads": 2, "d_qk": 16, "d_v": 16, "rope": 1, "norm_parameters": 1,
    "norms": 2, "vocab": 128, "accumulate_bytes": 4, "accumulation": 1, "loss_saved_bytes": 2,
}  # fmt: skip


def spec(kind="dense", dtype="bf16", attention="flash", **columns):
    return LayerSpec(kind=kind, columns=BASE | columns, dtype=dtype, attention=attention)
