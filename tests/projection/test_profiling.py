"""Where times come from: a record, what is at hand, or the models."""

import pytest
from tests.measure.synthetic import synthetic_record

import projector as pj
from projector.errors import ConfigError, MeasurementError, UnsupportedError
from projector.measure import process
from projector.measure import programs as measure_api
from projector.measure.devices import GpusAtHand
from projector.measure.reduction import reduce_job
from projector.projection import profiling
from projector.projection.profiling import choose_source

JOB = {
    "model": {
        "name": "small",
        "num_layers": 8,
        "hidden_size": 512,
        "ffn_hidden_size": 1024,
        "num_attention_heads": 8,
        "num_query_groups": 4,
        "vocab_size": 2048,
        "max_position_embeddings": 512,
        "moe": {"num_experts": 16, "router_topk": 2, "ffn_hidden_size": 256},
    },
    "parallelism": {"tp": 2, "pp": 4, "ep": 8},
    "training": {"micro_batch_size": 1, "global_batch_size": 256, "seq_length": 512},
    "cluster": {"device": "h100", "nodes": 8},
}
H100 = GpusAtHand("nvidia", "NVIDIA H100 80GB HBM3", 8, "h100")
A100 = GpusAtHand("nvidia", "NVIDIA A100-SXM4-80GB", 8, "a100")
"""What drivers tell of GPUs."""


@pytest.fixture(scope="module")
def job():
    return pj.load_job(JOB)


@pytest.fixture(scope="module")
def record(job):
    return synthetic_record(reduce_job(job, 1), slow=1.2)


class Machine:
    """A machine with the GPUs of a test, on which measuring answers a record."""

    def __init__(self, monkeypatch, record):
        self.gpus, self.measured, self.told = None, [], []
        self.record, self.error = record, None
        monkeypatch.setattr(profiling, "gpus_at_hand", lambda: self.gpus)
        monkeypatch.setattr(profiling, "cpu_name", lambda: "a processor")
        monkeypatch.setattr(process, "check_torch", lambda: None)
        monkeypatch.setattr(measure_api, "benchmark_record", self.measure)

    def measure(self, job, gpus, *, device, tell):
        if self.error is not None:
            raise self.error
        self.measured.append((gpus, device))
        tell("measuring")
        return self.record

    def choose(self, job, *args, **options):
        return choose_source(job, *args, tell=self.told.append, **options)


@pytest.fixture
def machine(monkeypatch, record):
    return Machine(monkeypatch, record)


def test_without_a_gpu_the_models_answer_and_nothing_is_said(machine, job):
    source = machine.choose(job)
    assert (source.mode, source.record, source.why) == ("simulate", None, "")
    assert source.to_dict() == {}
    assert machine.told == []


def test_a_gpu_of_the_job_is_measured_and_that_is_said(machine, job):
    machine.gpus = H100
    source = machine.choose(job)
    assert source.mode == "benchmark"
    assert source.record is machine.record
    assert "at hand" in source.why
    assert machine.measured == [(8, "cuda")]
    assert "H100" in machine.told[0]
    assert "simulate" in machine.told[0]


def test_simulate_turns_it_off(machine, job):
    machine.gpus = H100
    assert machine.choose(job, "simulate").record is None
    assert machine.measured == machine.told == []


def test_no_more_gpus_than_there_are(machine, job):
    machine.gpus = H100._replace(gpus=2)
    machine.choose(job)
    machine.choose(job, benchmark_gpus=1)
    assert machine.measured == [(2, "cuda"), (1, "cuda")]
    with pytest.raises(ConfigError, match="4 are asked for, and 2 are at hand"):
        machine.choose(job, benchmark_gpus=4)


def test_another_gpu_is_not_measured_and_that_is_said(machine, job):
    machine.gpus = A100
    source = machine.choose(job)
    assert source.record is None
    assert "A100" in source.why
    assert "H100" in source.why
    assert machine.told == [f"{source.why}: simulated"]
    assert source.warnings == ()
    for options in ({"mode": "benchmark"}, {"mode": "both"}, {"benchmark_gpus": 1}):
        with pytest.raises(MeasurementError, match="A100") as error:
            machine.choose(job, **options)
        assert error.value.key == "profiling_mode"


def test_asking_for_a_measurement_where_there_is_no_gpu_is_an_error(machine, job):
    with pytest.raises(MeasurementError, match="no GPU is at hand") as error:
        machine.choose(job, benchmark_gpus=1)
    assert "--load-benchmark" in error.value.message
    assert error.value.allowed == "simulate"


def test_a_model_that_is_never_measured_is_refused_by_name(machine):
    training = {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4608}
    job = pj.load_job({**JOB, "model": "flux.1_dev", "parallelism": {}, "training": training})
    with pytest.raises(UnsupportedError, match="is a diffusion transformer: its layers"):
        choose_source(job, "benchmark")
    with pytest.raises(UnsupportedError, match="is a diffusion transformer: its layers"):
        pj.measure_job(job)
    assert choose_source(job).mode == "simulate"


def test_a_failed_measurement_is_a_warning_where_nobody_asked_for_it(machine, job):
    machine.gpus = H100
    machine.error = MeasurementError("rank 3 died", key="worker")
    source = machine.choose(job)
    assert source.record is None
    assert "rank 3 died" in source.warnings[0]
    with pytest.raises(MeasurementError, match="rank 3 died"):
        machine.choose(job, "benchmark")
    result = pj.project_performance(job, profiling_mode="auto")
    assert result.iteration_time_s == pj.project_performance(job).iteration_time_s
    assert "rank 3 died" in result.warnings[-1]
    assert "rank 3 died" in result.memory.warnings[-1]
    assert result.to_dict()["provenance"]["profiling_mode"] == "simulate"


def test_the_processor_is_measured_where_the_job_names_it(machine, job):
    on_processor = pj.load_job(job, {"cluster.device.name": "a processor"})
    machine.choose(on_processor, "benchmark")
    assert machine.measured == [(1, "cpu")]
    assert machine.choose(on_processor).record is None, "nobody asked"


def test_what_was_measured_is_kept_before_it_is_used(machine, job, tmp_path):
    machine.gpus, path = H100, tmp_path / "record.json"
    machine.choose(job, save=path)
    assert pj.load_record(path) == machine.record
    assert str(path) in machine.told[-1]


def test_measuring_is_the_same_in_python(machine, job):
    machine.gpus = H100
    assert pj.measure_job(JOB, benchmark_gpus=1, progress=machine.told.append) is machine.record
    machine.gpus = None
    with pytest.raises(MeasurementError, match="no GPU is at hand"):
        pj.measure_job(job)


def test_records_are_taken_where_they_are_given(job, record):
    found = pj.project_performance(job, records=record)
    assert found.record == record
    assert found.comparison is None
    assert found.iteration_time_s > pj.project_performance(job).iteration_time_s
    terms = found.to_dict()["provenance"]["terms"]
    assert terms == found.origins
    assert terms.keys() == found.to_dict()["breakdown_ms"].keys()
    assert terms["compute_gemm"] == terms["compute_attention"] == "measured", "by themselves"
    assert terms["compute_other"] == "scaled", "TP is another one"
    assert "scaled" in found._repr_html_()
    plain = pj.project_performance(job)
    assert plain.origins == {}
    assert "from" not in plain._repr_html_()


def test_the_record_of_most_gpus_counts(job, record):
    wider = synthetic_record(reduce_job(job, 2), slow=1.2)
    assert choose_source(job, records=[record, wider]).record == wider
    assert choose_source(job, records=[wider, record]).record == wider


def test_records_that_do_not_hold_are_left_out_unless_none_holds(job, record):
    other = pj.load_job(job, {"model.hidden_size": 1024})
    unfit = synthetic_record(reduce_job(other, 1))
    assert choose_source(job, records=[unfit, record]).record == record
    with pytest.raises(ConfigError, match="hidden_size 1024"):
        choose_source(job, records=[unfit])


def test_both_compares(job, record):
    found = pj.project_performance(job, records=record, profiling_mode="both")
    compared, simulated = found.comparison, pj.project_performance(job)
    assert compared.total.measured_s == found.iteration_time_s
    assert compared.total.simulated_s == simulated.iteration_time_s
    assert compared.target.keys() == {*found.breakdown_s, "total"}
    assert len(compared.operations) == len(record.operations)
    for entry in (*compared.operations, *compared.layers):
        assert entry.pair.ratio == pytest.approx(1 / 1.2)
    assert {entry.layer for entry in compared.layers} == {"embedding", "moe", "head"}
    assert compared.step.keys() == {"forward", "backward", "optimizer", "total"}
    for pair in compared.step.values():
        assert pair.ratio == pytest.approx(1 / 1.2)
    assert compared.missing == ()
    assert compared.memory["step"].ratio == pytest.approx(1.0)
    found = compared.to_dict()["summary"]["operations"]
    assert found["geomean_ratio"] == pytest.approx(1 / 1.2)
    assert found["median_ape"] == pytest.approx(1 - 1 / 1.2)


def test_every_schedule_is_restored(job, record):
    found = pj.project_performance(job, records=record, schedule="all")
    assert found.alternatives
    assert all({*other.origins} == {*found.origins} for other in found.alternatives)
    alone = pj.project_performance(job, records=record, schedule=found.schedule)
    assert found.iteration_time_s == alone.iteration_time_s


def test_memory_takes_records(job, record):
    memory = pj.project_memory(job, records=record, profiling_mode="both")
    assert memory.anchor is not None
    found = memory.to_dict()
    assert found["provenance"]["record"]["reduction"] == record.reduction
    assert found["comparison"]["target"]["measured_gib"] == found["peak_gib"]
    assert "comparison" not in pj.project_memory(job, records=record).to_dict()


def test_closed_forms_take_nothing_measured(job, record):
    with pytest.raises(ConfigError, match="closed forms"):
        pj.project_performance(job, records=record, fidelity="first-order")
    with pytest.raises(ConfigError, match="closed forms"):
        pj.project_memory(job, profiling_mode="both", fidelity="first-order")
