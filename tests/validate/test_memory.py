import pytest

import projector
from projector.validate.jobs import JobRow
from projector.validate.memory import KIND, why_not_eligible

ROW = {
    "model": "llama3-70b-L8", "gpu": "B200", "n_gpus": "8", "precision": "BF16",
    "seq_len": "4096", "micro_batch": "1", "global_batch": "16", "tp": "1", "pp": "2", "vpp": "1",
    "cp": "1", "ep": "1", "dp": "4", "fsdp_zero": "ZeRO-1", "recompute": "none",
    "num_layers": "8", "other_flags": "no overlap", "component": "peak allocated, max over ranks",
    "mem_gib": "50", "kind": "measured", "source": "SimuMax",
}  # fmt: skip


def changed(**fields):
    return {**ROW, **fields}


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({}, ""),
        ({"kind": "analytical"}, "kind analytical, not measured"),
        ({"kind": ""}, "kind not stated, not measured"),
        ({"micro_batch": ""}, "no micro-batch"),
        ({"seq_len": ""}, "no sequence length"),
        ({"model": "FLA retnet 1.3B-class"}, "a hybrid model with layers that are not modelled"),
    ],
)
def test_rules(fields, rule):
    assert why_not_eligible(changed(**fields)) == rule


def test_components():
    names = (
        "peak allocated, max over ranks",
        "peak reserved, max over ranks",
        "peak allocated, lightest rank (last stage)",
        "GPU memory",
        "peak memory",
    )
    found = [
        outcome.predicted for outcome in KIND.project([changed(component=name) for name in names])
    ]
    job = JobRow(ROW).job()
    memory = projector.project_memory(job)
    stages = [each.peak_bytes / 2**30 for each in memory.stages]
    reserved = (memory.peak_bytes + memory.allocator_bytes) / 2**30
    assert found == pytest.approx(
        [max(stages), reserved, min(stages), reserved + memory.reserve_bytes / 2**30, max(stages)]
    )
    assert min(stages) < max(stages)


def test_ratio_and_mark():
    outcome = KIND.project([ROW])[0]
    assert outcome.ratio == outcome.predicted / 50
    assert outcome.measured == 50.0
    assert outcome.mark == "row"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"component": "shoe size"}, "unknown component 'shoe size'"),
        ({"mem_gib": "lots"}, "mem_gib is 'lots', not a number"),
        ({"mem_gib": "0"}, "not a positive number"),
        ({"model": "nobody"}, "unknown model"),
        ({"global_batch": "15"}, "not a multiple"),
    ],
)
def test_a_bad_row_says_why(fields, message):
    outcomes = KIND.project([changed(**fields), ROW])
    assert message in outcomes[0].status
    assert outcomes[1].status == "ok"


@pytest.mark.parametrize(
    ("component", "like"),
    [
        ("max_memory_reserved", "peak reserved, max over ranks"),
        ("Max allocated memory", "peak allocated, max over ranks"),
        ("memory usage ratio x 288", "GPU memory"),
        ("VRAM used (nvidia-smi)", "GPU memory"),
        ("HBM used", "GPU memory"),
        ("hip mem usage", "GPU memory"),
    ],
)
def test_spellings_of_components(component, like):
    found, known = KIND.project([changed(component=component), changed(component=like)])
    assert found.predicted == known.predicted


def test_parts_of_the_memory_and_unknown_components_fail():
    for component in ("activations", "optimizer states", "host RAM of a dream"):
        assert component in KIND.project([changed(component=component)])[0].status


def test_a_share_is_of_the_memory_of_the_device():
    row = changed(component="memory usage ratio", mem_gib="0.5", unit_note="ratio as printed")
    device = JobRow(row).job()["cluster"].device
    assert KIND.project([row])[0].measured == pytest.approx(0.5 * device.hbm_gib)
    row = changed(component="GPU memory", mem_gib="50", unit_note="percent")
    assert KIND.project([row])[0].measured == pytest.approx(0.5 * device.hbm_gib)


def test_a_local_batch_is_the_micro_batch_of_a_rank():
    row = changed(micro_batch="", other_flags="1F1B; local batch 4")
    assert why_not_eligible(row) == ""
    assert why_not_eligible({**row, "other_flags": ""}) == "no micro-batch"
