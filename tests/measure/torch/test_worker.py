import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from projector.measure import worker  # noqa: E402
from projector.measure.keys import OperationKey  # noqa: E402
from projector.measure.task import (  # noqa: E402
    Answer,
    CopyProgram,
    LayerProgram,
    LayerSpec,
    OperationProgram,
    Pace,
    Task,
)

QUICK = Pace(warm_up_s=0.0, most_warm_up_s=0.05, repeats=3, least_s=1e-4)
DENSE = {
    "micro_batch": 1, "seq": 32, "tp": 1, "cp": 1, "hidden": 64, "ffn": 96, "gated": 1,
    "heads": 4, "key_heads": 2, "d_qk": 16, "d_v": 16, "rope": 1, "norm_parameters": 1,
    "norms": 2,
}  # fmt: skip


def gemm(phase="forward", **extents):
    return OperationProgram(
        key=OperationKey(label="x", phase=phase, kind="gemm", dtype="bf16", **extents)
    )


def test_a_task_is_answered_through_files(tmp_path: Path) -> None:
    task = Task(
        device="cpu", threads=1, pace=QUICK,
        programs=[
            gemm(m=32, n=48, k=64), gemm("weight", m=32, n=48, k=64), CopyProgram(bytes=4096),
            LayerProgram(layer=LayerSpec(kind="dense", columns=DENSE, dtype="bf16")),
        ],
    )  # fmt: skip
    (tmp_path / "task.json").write_text(task.model_dump_json())
    worker.main(str(tmp_path / "task.json"), str(tmp_path / "answer.json"))
    answer = Answer.model_validate(json.loads((tmp_path / "answer.json").read_text()))
    assert [outcome.status for outcome in answer.outcomes] == ["ok"] * 4
    assert set(answer.outcomes[0].times) == {"time"}
    assert set(answer.outcomes[3].times) >= {"forward", "backward"}
    assert answer.environment.backend == "cpu"
    assert answer.environment.threads == 1
