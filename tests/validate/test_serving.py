import pytest

from projector.validate.kind import FROM_ROW, FROM_RULE, OK, Without
from projector.validate.serving import KIND

ROW = {
    "model": "Llama-3.1-8B", "gpu": "H100", "n_gpus": "2", "precision": "BF16", "tp": "2",
    "pp": "1", "phase": "decode", "batch_or_concurrency": "4", "input_len": "128",
    "output_len": "64", "value": "500", "unit": "tokens/s", "source": "made up",
}  # fmt: skip


def project(**changes):
    (outcome,) = KIND.project([{**ROW, **changes}])
    return outcome


@pytest.mark.parametrize(
    ("phase", "batch", "eligible"),
    [
        ("decode", "1", True),
        ("prefill-dominated", "16", True),
        ("latency prefill+decode", "128", True),
        ("offline max load (prefill+decode)", "unbounded", False),
        ("decode", "", False),
        ("decode", "max seqs 1500", False),
        ("offline 1000 requests", "1000", False),
        ("serving", "16", False),
    ],
)
def test_prefill_and_decode_of_a_stated_batch_count(phase, batch, eligible):
    why = KIND.why_not_eligible({"phase": phase, "batch_or_concurrency": batch})
    assert (why == "") == eligible


def test_units_agree_with_each_other():
    rate, seconds, step = (project(unit=unit) for unit in ("tokens/s", "s end-to-end", "ms"))
    assert rate.status == seconds.status == step.status == OK
    assert rate.mark == FROM_ROW
    assert rate.predicted == pytest.approx(4 * 64 / seconds.predicted)
    assert 0.0 < 63 * step.predicted * 1e-3 < seconds.predicted
    assert project(unit="tokens/s/GPU").predicted == pytest.approx(rate.predicted / 2)
    assert rate.ratio == rate.predicted / 500.0


def test_prefill_alone_counts_its_prompts():
    alone = {"phase": "prefill", "output_len": ""}
    first = project(unit="ms", **alone)
    rate = project(unit="tokens/s", **alone)
    assert rate.predicted == pytest.approx(4 * 128 / (first.predicted * 1e-3))


def test_replicas_share_the_batch():
    one, two = project(), project(n_gpus="4", batch_or_concurrency="8")
    assert two.predicted == pytest.approx(2.0 * one.predicted)


def test_missing_lengths_follow_a_rule():
    outcome = project(input_len="", output_len="")
    assert outcome.status == OK
    assert outcome.mark == FROM_RULE
    assert "not stated" in outcome.note


@pytest.mark.parametrize(
    "gpu", ["A100-80GB (330W, hybrid cube mesh)", "MI210/MI250 class (see blog)"]
)
def test_a_device_in_words_is_found(gpu):
    assert project(gpu=gpu, precision="FP16").status == OK


def test_weight_only_and_narrow_types_are_faster():
    bf16 = project().predicted
    for precision in ("INT8", "INT4 g32", "FP8", "FP8-KV"):
        assert project(precision=precision).predicted > bf16


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("value", "fast"), ("value", "0"), ("value", ""), ("unit", "furlongs"), ("model", "Nemo9"),
        ("gpu", "Z9000"), ("precision", "int3"), ("tp", "3"), ("tp", "x"), ("pp", "0"),
        ("n_gpus", "3"), ("input_len", "-1"), ("output_len", "1.5"), ("input_len", "1e300"),
        ("batch_or_concurrency", "1" * 30), ("model", ""),
    ],
)  # fmt: skip
def test_a_bad_value_fails_its_row_only(column, text):
    good, bad, again = KIND.project([ROW, {**ROW, column: text}, ROW])
    assert good == again
    assert good.status == OK
    assert bad.status != OK
    assert bad.predicted is None


def test_nothing_is_projected_as_nothing():
    assert KIND.project([]) == []


@pytest.mark.parametrize(
    ("phase", "found"),
    [
        ("decode", "decode"),
        ("latency prefill+decode", "latency"),
        ("prefill-dominated", "prefill"),
        ("offline max load (prefill+decode)", "load"),
    ],
)
def test_totals_are_kept_by_what_a_row_times(phase, found):
    assert KIND.phase({**ROW, "phase": phase}) == found


LATENCY = {"phase": "latency prefill+decode", "unit": "s", "value": "5", "input_len": "4096"}


@pytest.mark.parametrize(
    ("framework", "cached"),
    [
        ("vLLM 0.10.0 ROCm 6.4.1", True), ("vLLM 0.7.3", False), ("vLLM 0.11.1", False),
        ("vLLM", False), ("SGLang 0.10.0", False),
    ],
)  # fmt: skip
def test_prompts_that_a_benchmark_repeats_are_cached(framework, cached):
    plain = project(**LATENCY, framework="vLLM 0.7.3").predicted
    assert (project(**LATENCY, framework=framework).predicted < 0.9 * plain) == cached
    assert ("same prompts" in project(**LATENCY, framework=framework).note) == cached


def test_an_engine_costs_host_time_and_an_eager_one_more():
    rates = [
        project(framework=name, precision=precision).predicted
        for name, precision in (
            ("", "BF16"), ("vLLM 0.10.0", "BF16"), ("gpt-fast", "FP16 eager"),
        )
    ]  # fmt: skip
    assert rates == sorted(rates, reverse=True)


def test_a_load_that_does_not_fit_is_served_in_waves():
    load = {"phase": "offline (prefill+decode)", "input_len": "8192", "output_len": "1024"}
    one, many = (project(**load, batch_or_concurrency=batch) for batch in ("64", "4096"))
    assert "sequences at once" not in one.note
    assert "sequences at once" in many.note
    assert many.predicted == pytest.approx(one.predicted, rel=0.7)


def test_the_ratio_of_a_rate_is_the_inverse_of_that_of_times():
    outcome = project()
    assert outcome.is_inverse
    assert outcome.time_ratio == pytest.approx(1.0 / outcome.ratio)
    assert not project(unit="s").is_inverse


def test_a_row_is_projected_with_constants_that_have_not_seen_it():
    row = {**ROW, "framework": "vLLM 0.10.0"}
    slow = Without("made up", {"step_us": 5000.0, "sequence_us": 0.0})
    (other,) = KIND.project_without([row], [slow])
    (own,) = KIND.project([row])
    assert other.predicted < 0.8 * own.predicted


def test_a_row_that_contradicts_itself_is_doubtful():
    note = "below bandwidth bound 3.35TB/s/70GB=48"
    assert KIND.doubt({**ROW, "notes": note})
    assert not KIND.doubt(ROW)
