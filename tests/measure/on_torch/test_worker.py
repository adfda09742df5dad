"""A worker's answers on a CPU: every program has an outcome, whatever happens to it."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from measure.on_torch.layer_specs import BASE, spec  # noqa: E402
from projector.measure import worker  # noqa: E402
from projector.measure.keys import OperationKey  # noqa: E402
from projector.measure.parts import DRAWN, Kit  # noqa: E402
from projector.measure.task import (  # noqa: E402
    Answer,
    ClockProgram,
    CopyProgram,
    LayerProgram,
    OperationProgram,
    Pace,
    StepProgram,
    Task,
)

QUICK = Pace(warm_up_s=0.0, most_warm_up_s=0.02, repeats=3, least_s=1e-5)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def gemm(phase="forward", **extents):
    extents = {"m": 32, "n": 48, "k": 64, "dtype": "bf16"} | extents
    return OperationProgram(key=OperationKey(label="x", phase=phase, kind="gemm", **extents))


def measure(*programs, pace=QUICK):
    return worker.measure(Task(device="cpu", threads=1, pace=pace, programs=list(programs)))


def outcomes(*programs, pace=QUICK):
    return measure(*programs, pace=pace).outcomes


def test_a_task_is_answered_through_files(tmp_path: Path) -> None:
    programs = [gemm(), CopyProgram(bytes=4096), LayerProgram(layer=spec())]
    task = Task(device="cpu", threads=1, pace=QUICK, programs=programs)
    (tmp_path / "task.json").write_text(task.model_dump_json())
    worker.main(str(tmp_path / "task.json"), str(tmp_path / "answer.json"))
    answer = Answer.model_validate(json.loads((tmp_path / "answer.json").read_text()))
    assert [outcome.status for outcome in answer.outcomes] == ["ok"] * 3
    assert set(answer.outcomes[0].times) == {"time"}
    assert set(answer.outcomes[2].times) == {
        "forward", "backward", "input_gradient", "weight_gradient"
    }  # fmt: skip
    assert answer.environment.backend == "cpu"
    assert answer.environment.threads == 1
    assert answer.environment.torch == torch.__version__
    assert answer.environment.memory_bytes > 0


def test_what_cannot_run_says_why_and_the_rest_goes_on():
    huge = 1 << 22
    unknown = OperationProgram(
        key=OperationKey(label="odd.thing", phase="forward", kind="memory", bytes=64.0),
        layer=spec(),
    )
    ranks = OperationProgram(
        key=OperationKey(
            label="mlp.tp", phase="forward", kind="collective", operation="all_reduce", ranks=4,
            bytes=64.0,
        )
    )  # fmt: skip
    found = outcomes(
        gemm(dtype="nvfp4"), unknown, ranks, gemm(m=huge, n=huge, k=huge),
        LayerProgram(layer=spec(ffn=1 << 44)), gemm(),
    )  # fmt: skip
    narrow, odd, alone, too_large, too_wide, fine = found
    assert (narrow.status, odd.status, alone.status) == ("unsupported",) * 3
    assert "nvfp4" in narrow.message
    assert "odd.thing" in odd.message
    assert "4 ranks" in alone.message
    assert (too_large.status, too_wide.status) == ("out_of_memory",) * 2
    assert fine.status == "ok"


@pytest.mark.rotated
@pytest.mark.parametrize("phase", ["forward", "backward", "weight"])
@pytest.mark.parametrize(
    "extents",
    [
        {}, {"batch": 3}, {"batch": 3, "expert": True}, {"dtype": "fp32"}, {"dtype": "tf32"},
        {"dtype": "fp16"}, {"out_bytes": 8.0}, {"batch": 3, "expert": True, "out_bytes": 8.0},
    ],
    ids=str,
)  # fmt: skip
def test_gemms_of_every_phase_and_type(phase, extents):
    (found,) = outcomes(gemm(phase, **extents))
    assert found.status == "ok", found
    assert found.times["time"].median_s > 0.0
    assert ("grouped" in found.backend or "loop" in found.backend) == bool(extents.get("expert"))


def test_random_numbers_are_those_of_the_seed():
    first, second = (Kit(torch, torch.device("cpu"), 7) for _ in range(2))
    drawn = [kit.random(5, dtype=torch.float32) for kit in (first, first, second)]
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    assert first.made_bytes == 40


def test_large_tensors_are_random_too():
    first, second = (Kit(torch, torch.device("cpu"), 7) for _ in range(2))
    shape = (3, DRAWN // 2 + 1)
    drawn = [kit.random(*shape, dtype=torch.float32, scale=2.0) for kit in (first, first, second)]
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    assert float(drawn[0].std()) == pytest.approx(2.0, rel=0.01)
    assert float(drawn[0].mean()) == pytest.approx(0.0, abs=0.01)


def test_a_step_is_more_than_its_layers_and_counts_its_memory():
    layers = [spec("embedding"), spec(), spec("head")]
    *of_layers, step, sgd = outcomes(
        *(LayerProgram(layer=layer) for layer in layers), StepProgram(layers=layers),
        StepProgram(layers=layers, optimizer="sgd"),
    )  # fmt: skip
    assert {outcome.status for outcome in (*of_layers, step, sgd)} == {"ok"}
    assert set(step.times) == {"forward", "backward", "optimizer", "total"}
    assert "AdamW" in step.backend
    assert "SGD" in sgd.backend
    parameters = [outcome.numbers["parameters"] for outcome in of_layers]
    assert step.numbers["parameters"] == sum(parameters)
    # BF16 weights, FP32 main gradients, masters and two moments.
    assert step.numbers["states_bytes"] == 18.0 * sum(parameters)
    assert step.numbers["peak_allocated_bytes"] > step.numbers["states_bytes"]
    assert step.numbers["peak_reserved_bytes"] >= step.numbers["peak_allocated_bytes"]
    alone = sum(outcome.times["forward"].median_s for outcome in of_layers)
    assert step.numbers["layers_forward_s"] == pytest.approx(alone)
    beyond = step.times["forward"].median_s - alone
    assert step.numbers["beyond_layers_forward_s"] == pytest.approx(beyond, abs=1e-12)


def test_a_tied_head_shares_the_weight_of_the_embedding():
    layers = [spec("embedding", tied=1), spec("head", tied=1)]
    (step,) = outcomes(StepProgram(layers=layers))
    assert step.numbers["parameters"] == BASE["vocab"] * BASE["hidden"] + BASE["hidden"]


def test_a_clock_runs_under_load():
    (found,) = outcomes(ClockProgram(dtype="bf16", seconds=0.05))
    assert found.status == "ok"
    assert found.numbers["flop_per_s"] > 0.0


DELAY_S = 0.05
TRIES = 2


def test_a_slower_layer_is_measured_as_that_much_slower():
    """Of a sleep of 50 ms at least all and at most half as much again: medians of seven.

    A sleep never ends early, and on a busy machine late. It is tried twice.
    """
    pace = Pace(warm_up_s=0.0, most_warm_up_s=0.3, repeats=7, least_s=1e-3)
    for attempt in range(TRIES):
        plain, slowed = outcomes(
            LayerProgram(layer=spec()), LayerProgram(layer=spec(), delay_s=DELAY_S), pace=pace
        )
        longer = slowed.times["forward"].median_s - plain.times["forward"].median_s
        if 0.9 * DELAY_S <= longer <= 1.5 * DELAY_S:
            break
        assert attempt < TRIES - 1, longer
    # Both layers are the same otherwise.
    assert slowed.numbers["parameters"] == plain.numbers["parameters"]
