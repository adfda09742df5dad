"""Our own timeline, written as a trace and read back, is what the projection expects."""

import json
from decimal import Decimal

import pytest

import projector as pj
from projector.cli.main import run

JOB = {
    "model": {
        "name": "small Llama",
        "num_layers": 4,
        "hidden_size": 512,
        "ffn_hidden_size": 1536,
        "num_attention_heads": 8,
        "num_query_groups": 2,
        "vocab_size": 4096,
        "max_position_embeddings": 1024,
    },
    "parallelism": {"tp": 2, "pp": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 16, "seq_length": 1024},
    "cluster": {"device": "h100", "nodes": 1},
}


@pytest.fixture(scope="module")
def timeline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("timeline")
    job, path = folder / "job.json", folder / "timeline.json"
    job.write_text(json.dumps(JOB))
    arguments = ["performance", "--config", str(job), "--timeline", str(path), "--quiet", "--json"]
    assert run(arguments) == 0
    return path


def scaled(path, factor):
    """Write the same trace with everything so many times longer."""
    found = json.loads(path.read_text(), parse_float=Decimal)
    for event in found["traceEvents"]:
        for key in ("ts", "dur"):
            if key in event:
                event[key] = float(event[key]) * factor
    other = path.with_name(f"times{factor:g}.json")
    other.write_text(json.dumps(found, default=float))
    return other


def test_everything_is_matched(timeline):
    found = pj.compare_trace(timeline, JOB)
    assert found.matched_first == 1.0
    assert found.matched_second == 1.0
    assert len(found.operations) >= 30


def test_forwards_take_what_is_projected(timeline):
    """What nothing overlaps is exact; beside communication the timeline takes longer."""
    found = pj.compare_trace(timeline, JOB)
    alone = [each for each in found.operations if each.kind in ("gemm", "attention")]
    assert {each.phase for each in alone} == {"forward", "backward", "weight"}
    for each in alone:
        if each.phase == "forward":
            assert each.slowdown == pytest.approx(1.0, rel=1e-6), each
        else:
            # Waits for its own launches and slowdown beside gradients that are summed.
            assert 1.0 - 1e-6 <= each.slowdown < 1.2, each


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_known_factor_is_found(timeline, factor):
    first = pj.compare_trace(timeline, JOB)
    plain = {each.operation + each.phase: each for each in first.operations}
    found = pj.compare_trace(scaled(timeline, factor), JOB)
    assert found.matched_second == 1.0
    for each in found.operations:
        before = plain[each.operation + each.phase]
        assert each.slowdown / before.slowdown == pytest.approx(factor, rel=1e-3), each
    both = pj.compare_traces(timeline, scaled(timeline, factor))
    assert both.matched_first == both.matched_second == 1.0
    for each in both.operations:
        assert each.slowdown == pytest.approx(factor, rel=1e-3)


def test_terms_of_two_runs_add_up_to_their_steps(timeline):
    """A run that is twice as long is twice as long in each term."""
    step = dict(pj.compare_traces(timeline, scaled(timeline, 2.0)).step)
    total = step.pop("total")
    assert {"compute_gemm", "communication", "idle"} <= set(step)
    assert sum(pair.simulated_s for pair in step.values()) == pytest.approx(total.simulated_s)
    for pair in step.values():
        assert pair.measured_s == pytest.approx(2.0 * pair.simulated_s, rel=1e-3)


def test_gradients_that_look_alike_are_told_apart_by_their_names(tmp_path):
    """Where a sequence is as long as the network is wide, both gradients have the same extents."""
    job = JOB | {"training": JOB["training"] | {"seq_length": 512}, "parallelism": {"tp": 1}}
    path, config = tmp_path / "timeline.json", tmp_path / "job.json"
    config.write_text(json.dumps(job))
    arguments = ["performance", "--config", str(config), "--timeline", str(path), "--quiet"]
    assert run([*arguments, "--json"]) == 0
    rows = [row for row in pj.compare_trace(path, job).operations if row.kind == "gemm"]
    assert {row.phase for row in rows} == {"forward", "backward", "weight"}
    for row in rows:
        assert row.runs == pytest.approx(row.expected_runs), row


def test_copies_of_fsdp_are_no_neighbours_of_theirs(tmp_path):
    """What FSDP copies around its collectives runs between the kernels of layers."""
    job = JOB | {"parallelism": {"tp": 1, "pp": 1, "fsdp": 2}}
    path = tmp_path / "fsdp.json"
    pj.write_timeline(pj.project_performance(job), path)
    found = pj.compare_trace(path, job)
    assert found.matched_first == found.matched_second == 1.0
    copies = {each.operation: each for each in found.operations if "fsdp." in each.operation}
    assert set(copies) == {"fsdp.copy_in", "fsdp.copy_out"}
    for each in found.operations:
        if each.operation.endswith(("norm", "residual")):
            assert each.slowdown < 1.5, each


def test_a_lower_clock_of_one_run_is_called_frequency(tmp_path):
    """FSDP 1 has 0.82 of the clock of FSDP 2 on MI300X; links have a clock of their own."""
    paths = []
    for fsdp in (1, 2):
        job = JOB | {"parallelism": {"fsdp": fsdp}, "cluster": {"device": "mi300x", "nodes": 1}}
        paths.append(tmp_path / f"fsdp{fsdp}.json")
        pj.write_timeline(pj.project_performance(job), paths[-1])
    found = pj.compare_traces(*paths)
    named = {each.operation + each.phase: each for each in found.operations}
    for each in named.values():
        factors = {factor.name: factor.value for factor in each.factors}
        if each.kind in ("gemm", "attention"):
            assert factors["frequency"] == pytest.approx(0.82)
        assert ("frequency" in factors) == (each.kind != "communication")
    assert named["mlp.fc1forward"].because.name == "frequency"
