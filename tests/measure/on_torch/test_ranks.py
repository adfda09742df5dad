"""Two ranks of gloo: collectives, layers split over them, and a rank that dies under torchrun."""

import os
import sys

import pytest

torch = pytest.importorskip("torch")

from projector import project_performance  # noqa: E402
from projector.config.load import load_job  # noqa: E402
from projector.errors import MeasurementError  # noqa: E402
from projector.measure import process  # noqa: E402
from projector.measure.devices import cpu_name  # noqa: E402
from projector.measure.keys import OperationKey  # noqa: E402
from projector.measure.programs import record_of, task_of  # noqa: E402
from projector.measure.reduction import reduce_job  # noqa: E402
from projector.measure.task import OperationProgram, Pace, Task  # noqa: E402

PACE = Pace(warm_up_s=0.0, most_warm_up_s=0.05, repeats=3, least_s=0.0005)
OPERATIONS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "send_recv",
    "broadcast", "reduce",
)  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def program(operation, ranks, **more):
    key = OperationKey(
        label="mlp.tp", phase="forward", kind="collective", operation=operation, ranks=ranks,
        bytes=65536, **more,
    )  # fmt: skip
    return OperationProgram(key=key)


@pytest.mark.thorough
def test_collectives_of_two_ranks():
    programs = [program(operation, 2) for operation in OPERATIONS]
    programs += [program("all_reduce", 4)]
    heard = []
    answer = process.run_task(
        Task(device="cpu", ranks=2, tp=2, threads=1, pace=PACE, programs=programs),
        timeout_s=240.0,
        progress=heard.append,
    )
    assert len(heard) == len(programs)
    assert answer.environment.ranks == 2
    *measured, too_many = answer.outcomes
    for outcome in measured:
        assert outcome.status == "ok", outcome
        assert outcome.times["time"].repeats == 3
        assert 0.0 < outcome.times["time"].median_s < 10.0
        assert outcome.backend == "torch.distributed gloo"
    assert too_many.status == "unsupported"
    assert "needs 4 ranks, and 2 measured" in too_many.message


@pytest.mark.thorough
def test_a_split_layer_is_measured_with_its_collectives_and_restored(tmp_path):
    device = tmp_path / "here.yaml"
    device.write_text(f"extends: h100\nname: {cpu_name()}\n", encoding="utf-8")
    job = load_job(
        {
            "model": "mixtral_8x7b",
            "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 32},
            "cluster": {"device": str(device), "nodes": 2},
            "parallelism": {"tp": 2, "pp": 4, "ep": 2, "etp": 1},
        },
        {
            "model.hidden_size": 64, "model.num_attention_heads": 4, "model.num_query_groups": 2,
            "model.vocab_size": 256, "model.num_layers": 4, "model.moe.num_experts": 4,
            "model.moe.ffn_hidden_size": 64,
        },
    )  # fmt: skip
    reduction = reduce_job(job, 2)
    task = task_of(reduction, device="cpu", pace=PACE)
    kept = [
        each
        for each in task.programs
        if each.program == "layer"
        or (each.program == "operation" and each.key.kind == "collective")
    ]
    task = task.model_copy(update={"programs": kept, "threads": 1})
    answer = process.run_task(task, timeout_s=240.0)
    assert {outcome.status for outcome in answer.outcomes} == {"ok"}
    record = record_of(reduction, task, answer)
    step = project_performance(job, records=record)
    assert step.origins["tp_comm"] == "measured"
    assert step.origins["ep_comm"] == "measured"
    assert step.origins["dp_comm"] == "analytic"


CHECKS = """
import sys
import torch
from projector.measure.exchange import InStep, join
from projector.measure.guard import end_with_parent
from projector.measure.task import Task

end_with_parent()
asked, answered = sys.argv[-2:]
task = Task.model_validate_json(open(asked).read())
ranks = join(torch, task, "cpu")
mine = ranks.rank
comm = ranks.comm({"tp": 2, "cp": 1, "ep": 2})
assert (comm.degree("tp"), comm.rank("tp"), comm.degree("cp"), comm.rank("cp")) == (2, mine, 1, 0)

def both(run, x, gradient=None):
    x = torch.tensor(x, requires_grad=True)
    y = run(x * 1.0)
    y.backward(torch.ones_like(y) if gradient is None else torch.tensor(gradient))
    return y.detach().tolist(), x.grad.tolist()

rows = [[1.0 + mine], [10.0 + mine]]
all_rows = [[1.0], [10.0], [2.0], [11.0]]
# Tokens that are whole: they pass, and gradients are summed; the exit does the reverse.
assert both(lambda x: comm.enter(x, group="tp", divided=False), rows) == (rows, [[2.0], [2.0]])
sums = [[3.0], [21.0]]
assert both(lambda x: comm.leave(x, group="tp", divided=False), rows) == (sums, [[1.0], [1.0]])
assert both(lambda x: comm.total(x, group="tp"), rows) == (sums, [[1.0], [1.0]])
# Tokens that are divided: gathered, and gradients scattered; the exit does the reverse.
gradient = [[1.0], [2.0], [3.0], [4.0]]
gathered = both(lambda x: comm.enter(x, group="tp", divided=True), rows, gradient)
assert gathered == (all_rows, [[2.0], [4.0]] if mine == 0 else [[6.0], [8.0]])
assert both(lambda x: comm.gather(x, group="tp"), rows, gradient) == gathered
left = both(lambda x: comm.leave(x, group="tp", divided=True), rows, [[5.0 + mine]])
assert left == ([[3.0]] if mine == 0 else [[21.0]], [[5.0], [6.0]])
# Rows for each rank, and their gradients back.
swapped = both(lambda x: comm.swap(x, group="ep"), rows, [[7.0 + mine], [9.0 + mine]])
assert swapped[0] == ([[1.0], [2.0]] if mine == 0 else [[10.0], [11.0]])
assert swapped[1] == ([[7.0], [8.0]] if mine == 0 else [[9.0], [10.0]])
assert comm.largest(torch.tensor([1.0 * mine, -mine]), group="tp").tolist() == [1.0, 0.0]
# A group of one rank changes nothing.
for run in (comm.gather, comm.swap, comm.total, comm.largest):
    assert run(torch.ones(2, 1), group="cp").tolist() == [[1.0], [1.0]]
assert comm.enter(torch.ones(1), group="cp", divided=True).tolist() == [1.0]
assert comm.leave(torch.ones(1), group="cp", divided=False).tolist() == [1.0]
# A linear layer that enters a region is both steps in one, with exchanges beside its GEMMs.
generator = torch.Generator().manual_seed(mine)
for divided in (False, True):
    values = [torch.randn(*shape, generator=generator) for shape in ((4, 8), (6, 8), (6,))]
    found = []
    for whole in (True, False):
        x, weight, bias = (value.clone().requires_grad_() for value in values)
        if whole:
            y = comm.enter_linear(x * 1.0, weight, bias, group="tp", divided=divided)
        else:
            entered = comm.enter(x * 1.0, group="tp", divided=divided)
            y = torch.nn.functional.linear(entered, weight, bias)
        y.backward(torch.arange(float(y.numel())).reshape(y.shape) * (1.0 + mine))
        found.append([y.detach(), x.grad, weight.grad, bias.grad])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    weight.requires_grad_(False)
    x.grad = None
    comm.enter_linear(x * 1.0, weight, None, group="tp", divided=divided).sum().backward()
    assert x.grad.shape == x.shape
# Numbers that ranks agree on.
assert ranks.agree(1.0 * mine) == 1.0

class Slow:
    def sample(self, runs):
        return {"forward": 1.0 + mine, "backward": 5.0 - mine}

assert InStep(Slow(), ranks).sample(1) == {"forward": 2.0, "backward": 5.0}
try:
    with ranks.all_or_none():
        if mine == 1:
            raise RuntimeError("CUDA out of memory")
except (MemoryError, RuntimeError) as error:
    assert isinstance(error, MemoryError) == (mine == 0), error
else:
    raise AssertionError
ranks.leave()
if mine == 0:
    open(answered, "w").write(ANSWER)
"""
ANSWER = """{"environment": {"device": "none", "backend": "cpu", "memory_bytes": 1, "torch": "0"},
"outcomes": []}"""


def script(tmp_path, monkeypatch, code):
    """Put a script in the worker's place, under the real torchrun."""
    file = tmp_path / "ranks.py"
    file.write_text(code.replace("ANSWER)", f"{ANSWER!r})"), encoding="utf-8")
    monkeypatch.setattr(process, "WORKER", (sys.executable, str(file)))


@pytest.mark.thorough
def test_layers_communicate_as_they_should(tmp_path, monkeypatch):
    script(tmp_path, monkeypatch, CHECKS)
    task = Task(device="cpu", ranks=2, tp=2, ep=2, programs=[])
    assert process.run_task(task, timeout_s=240.0).outcomes == []


DIES = """
import os, signal, sys, time
open(sys.argv[-2].rpartition("/")[0] + "/../pids", "a").write(f"{os.getpid()} ")
if os.environ["RANK"] == "1":
    print("the last words of rank 1", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


@pytest.mark.thorough
def test_a_rank_that_dies_is_named_and_the_other_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    script(tmp_path, monkeypatch, DIES)
    with pytest.raises(
        MeasurementError, match=r"(?s)rank 1 of 2 was killed by SIGKILL.*last words"
    ):
        process.run_task(Task(device="cpu", ranks=2, programs=[]), timeout_s=240.0)
    for pid in (tmp_path / "pids").read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


VANISHES = """
import os, signal, sys
from projector.measure import session, worker
taken = session.take_turns

def take_turns(*arguments):
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return taken(*arguments)

session.take_turns = take_turns
sys.exit(worker.main(*sys.argv[-2:]))
"""


@pytest.mark.thorough
def test_a_rank_that_dies_in_the_middle_of_a_measurement_is_named(tmp_path, monkeypatch):
    script(tmp_path, monkeypatch, VANISHES)
    task = Task(
        device="cpu", ranks=2, threads=1, pace=PACE, programs=[program("all_reduce", 2)] * 2
    )
    with pytest.raises(MeasurementError, match="rank 1 of 2 was killed by SIGKILL"):
        process.run_task(task, timeout_s=240.0)
