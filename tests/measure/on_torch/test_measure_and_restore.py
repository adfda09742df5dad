"""From a job for a cluster to a record of this processor and back: measured, restored, compared."""

import json
import math
import re
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

import projector as pj
from projector.cli.main import run
from projector.measure import programs
from projector.measure.devices import cpu_name
from projector.measure.reduction import AS_MEASURED
from projector.measure.task import Pace
from projector.projection.terms import BREAKDOWN

pytest.importorskip("torch")

SMALL = {
    "num_layers": 8,
    "hidden_size": 64,
    "ffn_hidden_size": 128,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "vocab_size": 256,
    "max_position_embeddings": 64,
}
MODELS = {
    "llama": {"name": "small Llama", **SMALL},
    "moe": {
        "name": "small MoE",
        **SMALL,
        "moe": {"num_experts": 16, "router_topk": 2, "ffn_hidden_size": 32},
    },
}
QUICK = Pace(warm_up_s=0.0, most_warm_up_s=0.02, repeats=3, least_s=1e-5)
"""Nothing here depends on how long anything takes."""


def job_of(model):
    return {
        "model": MODELS[model],
        "parallelism": {"tp": 2, "pp": 4, **({"ep": 8} if model == "moe" else {})},
        "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 64},
        # A GPU by its numbers: what matters is that its name is that of the processor at hand.
        "cluster": {"device": {"extends": "a100", "name": cpu_name()}, "nodes": 8},
    }


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Measure on one thread, and no copies that do not fit a cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "COPIES", (1 << 20,))
        whole = programs.task_of

        def task_of(reduction, device, pace):
            del pace
            return whole(reduction, device=device, pace=QUICK)

        patch.setattr(programs, "task_of", task_of)
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


class Kept(NamedTuple):
    """What measuring a job left."""

    record: pj.Record
    said: str
    printed: str = ""
    path: Path | None = None


def measured_in_python(folder):
    del folder
    told = []
    record = pj.measure_job(job_of("moe"), benchmark_gpus=1, progress=told.append)
    return Kept(record, "\n".join(told))


def measured_by_the_command(folder):
    config, path = folder / "job.json", folder / "record.json"
    config.write_text(json.dumps(job_of("llama")), encoding="utf-8")
    printed, said = StringIO(), StringIO()
    asked = ["performance", "--config", str(config), "--json", "--profiling-mode", "both"]
    with redirect_stdout(printed), redirect_stderr(said):
        code = run([*asked, "--benchmark-gpus", "1", "--save-benchmark", str(path)])
    assert code == 0, said.getvalue()
    return Kept(pj.load_record(path), said.getvalue(), printed.getvalue(), path)


MEASURING = {"llama": measured_by_the_command, "moe": measured_in_python}


@pytest.fixture(scope="module")
def kept(quick, tmp_path_factory):
    """Measure each job once, and only those that are asked for."""
    done = {}

    def of(model):
        if model not in done:
            done[model] = MEASURING[model](tmp_path_factory.mktemp(model))
        return done[model]

    return of


ONE_OR_ALL = [
    pytest.param(name, marks=() if name == "moe" else pytest.mark.thorough) for name in MODELS
]


@pytest.fixture(params=ONE_OR_ALL)
def measured(request, kept):
    """A job, and the record of it that one process measured."""
    return pj.load_job(job_of(request.param)), kept(request.param).record


@pytest.mark.parametrize("model", ONE_OR_ALL)
def test_what_is_reduced_is_said_first(kept, model):
    lines = kept(model).said.splitlines()
    plan = next(at for at, line in enumerate(lines) if "PP 4 -> 1" in line)
    first = next(at for at, line in enumerate(lines) if re.match(r"\d+ of \d+: ", line))
    assert plan < first


def test_one_process_measures_everything(measured):
    job, record = measured
    assert (record.environment.backend, record.environment.ranks) == ("cpu", 1)
    assert record.environment.device == cpu_name()
    assert record.device == job.cluster.device.name
    programs_of = (*record.operations, *record.layers, record.step, *record.others)
    found = {(entry.outcome.status, entry.outcome.message) for entry in programs_of}
    assert found == {("ok", "")}
    kind = "dense" if job.model.moe is None else "moe"
    assert [entry.layer.kind for entry in record.layers] == ["embedding", kind, "head"]


def test_the_target_was_reduced_to_one_device(measured):
    job, record = measured
    dimensions = ["pp", "tp"] if job.model.moe is None else ["pp", "ep", "tp"]
    assert [step["dimension"] for step in record.reduction["steps"]] == dimensions
    benchmark = record.reduction["benchmark"]
    assert [benchmark[name] for name in ("tp", "pp", "ep", "gpus")] == [1, 1, 1, 1]
    if job.model.moe is not None:
        assert benchmark["num_experts"] == job.model.moe.num_experts / job.parallelism.ep


def test_restored_alike_after_a_file(measured, tmp_path):
    job, record = measured
    path = tmp_path / "record.json"
    record.save(path)
    assert pj.load_record(path) == record
    direct, loaded = (pj.project_performance(job, records=each) for each in (record, path))
    assert direct.to_dict() == loaded.to_dict()


def test_every_term_of_the_target_has_an_origin(measured):
    job, record = measured
    found = pj.project_performance(job, records=record)
    assert math.fsum(found.breakdown_s.values()) == pytest.approx(found.iteration_time_s)
    assert tuple(found.origins) == BREAKDOWN
    assert found.origins["compute_gemm"] == "measured", "those of a rank, by themselves"
    assert found.origins["compute_other"] != "analytic", "TP is another one"
    assert found.origins["optimizer"] == "scaled"
    assert found.origins["dp_comm"] == "analytic"
    assert found.memory.anchor is not None


def test_the_benchmark_itself_is_the_sum_of_measured_layers(measured):
    job, record = measured
    one = {
        **AS_MEASURED,
        "parallelism.tp": 1,
        "parallelism.pp": 1,
        "parallelism.ep": 1,
        "cluster.nodes": 1,
        "cluster.gpus_per_node": 1,
        "training.global_batch_size": 1,
    }
    if job.model.moe is not None:
        one["model.moe.num_experts"] = record.reduction["benchmark"]["num_experts"]
    found = pj.project_performance(pj.load_job(job, one), records=record)
    seconds = {
        entry.layer.kind: sum(
            entry.outcome.times[phase].median_s for phase in ("forward", "backward")
        )
        for entry in record.layers
    }
    layers = sum(
        seconds[kind] * (job.model.num_layers if kind in {"dense", "moe"} else 1)
        for kind in seconds
    )
    assert found.pipeline_s == pytest.approx(layers, rel=1e-6)


def test_measured_stands_beside_simulated(measured):
    job, record = measured
    found = pj.project_performance(job, records=record, profiling_mode="both")
    compared = found.comparison
    assert len(compared.operations) == len(record.operations)
    assert len(compared.layers) == 2 * len(record.layers)
    assert compared.step.keys() == {"forward", "backward", "optimizer", "total"}
    pairs = [entry.pair for entry in (*compared.operations, *compared.layers)]
    assert all(pair.measured_s > 0.0 and pair.simulated_s > 0.0 for pair in pairs)
    assert compared.total.measured_s == found.iteration_time_s
    assert compared.missing == ()


@pytest.mark.thorough
def test_the_command_keeps_what_it_measures_and_loads_it(kept, capsys):
    found = kept("llama")
    assert f"wrote {found.path}" in found.said
    asked = ["performance", "--config", str(found.path.with_name("job.json")), "--json"]
    assert run([*asked, "--profiling-mode", "both", "--load-benchmark", str(found.path)]) == 0
    printed, said = capsys.readouterr()
    assert json.loads(printed) == json.loads(found.printed)
    assert said == ""
    result = json.loads(printed)
    assert result["provenance"]["times"] == "hybrid"
    assert result["comparison"]["target"]["total"]["measured_ms"] == result["iteration_time_ms"]
