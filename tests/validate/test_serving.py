import pytest

from projector.validate.kind import FROM_ROW, FROM_RULE, OK, Without
from projector.validate.serving import KIND, Shared, read_case

ROW = {
    "model": "Llama-3.1-8B", "gpu": "H100", "n_gpus": "2", "precision": "BF16", "tp": "2",
    "pp": "1", "phase": "decode", "batch_or_concurrency": "4", "input_len": "128",
    "output_len": "64", "value": "500", "unit": "tokens/s", "source": "made up",
}  # fmt: skip


def project(**changes):
    (outcome,) = KIND.project([{**ROW, **changes}])
    return outcome


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"phase": "prefill-dominated", "batch_or_concurrency": "16"}, ""),
        ({"phase": "latency prefill+decode"}, ""),
        ({"phase": "offline max load (prefill+decode)", "batch_or_concurrency": "unbounded"}, ""),
        ({"phase": "serving (closed loop, max concurrency)"}, ""),
        ({"batch_or_concurrency": ""}, "no stated batch"),
        ({"phase": "serving", "batch_or_concurrency": ""}, "no stated batch, concurrency or rate"),
        ({"phase": "serving", "input_len": ""}, "no stated lengths"),
        ({"phase": "MLPerf Inference v5.1 Offline", "input_len": ""}, ""),
        ({"phase": "quality"}, "neither prefill, decode nor a load"),
        ({"unit": "W whole system"}, "power"),
        ({"notes": "speculative=MTP3"}, "speculation without its acceptance"),
        ({"notes": "speculative=MTP3; acceptance=2.8 tokens a step"}, ""),
        ({"notes": "disaggregated=yes; layout of prefill not stated"}, "no stated layout"),
    ],
)
def test_rows_that_state_what_they_time_count(changes, why):
    assert KIND.why_not_eligible({**ROW, **changes}) == why


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
        ("serving (closed loop, max concurrency)", "load"),
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


LOAD = {"phase": "offline max load (prefill+decode)", "input_len": "1024", "output_len": "256"}
CLOSED = {**LOAD, "phase": "serving (closed loop, max concurrency)", "unit": "ms mean TPOT"}
EXPERTS = {
    "model": "DeepSeek-R1", "gpu": "B200", "n_gpus": "8", "precision": "FP4", "tp": "1",
    "framework": "TensorRT-LLM",
}  # fmt: skip


def test_a_load_of_many_requests_is_served_as_fast_as_one_of_more():
    one, more = (project(**LOAD, batch_or_concurrency=many) for many in ("2000", "8000"))
    assert one.status == more.status == OK
    assert more.predicted == pytest.approx(one.predicted, rel=0.3)


def test_more_in_flight_give_more_tokens_and_slower_ones():
    rates = [project(**{**CLOSED, "unit": "output tokens/s total"}, batch_or_concurrency=many)
             for many in ("4", "64")]  # fmt: skip
    times = [project(**CLOSED, batch_or_concurrency=many) for many in ("4", "64")]
    assert rates[0].predicted < rates[1].predicted
    assert times[0].predicted < times[1].predicted
    share = project(**{**CLOSED, "unit": "output tokens/s/GPU"}, batch_or_concurrency="4")
    assert share.predicted == pytest.approx(rates[0].predicted / 2)


def test_statistics_of_first_tokens_are_ordered():
    units = ("ms median TTFT", "ms p99 TTFT")
    first = [project(**{**CLOSED, "unit": unit}, batch_or_concurrency="32") for unit in units]
    assert 0.0 < first[0].predicted < first[1].predicted


def test_arrivals_at_a_rate_are_served_at_that_rate():
    notes = "arrival=Poisson; rate_per_s=4; mean_output_len=200"
    load = {**CLOSED, "unit": "output tokens/s", "notes": notes}
    outcome = project(**load, batch_or_concurrency="Poisson 4 samples/s scheduled")
    assert outcome.predicted == pytest.approx(800.0, rel=0.1)


def test_layouts_of_notes_count():
    batch = {"phase": "decode", "batch_or_concurrency": "64", "unit": "ms", "input_len": "2048"}
    groups = project(**EXPERTS, **batch, notes="ep=8; attention_dp=8")
    implied = project(**EXPERTS, **batch, notes="ep=8")
    whole = project(**{**EXPERTS, "tp": "8"}, **batch, notes="ep=8; attention_dp=1")
    assert groups.predicted == implied.predicted != whole.predicted


def test_stated_acceptance_makes_tokens_faster():
    batch = {**EXPERTS, "tp": "8", "phase": "decode", "batch_or_concurrency": "1", "unit": "ms"}
    plain = project(**batch, notes="speculative=none")
    drafted = project(**batch, notes="speculative=MTP3; acceptance=2.8 tokens a step")
    assert plain.predicted / 2.8 < drafted.predicted < plain.predicted


def test_prefill_and_decode_apart_share_a_closed_loop():
    notes = (
        "disaggregated=yes; prefill_workers=1; prefill_tp=1; prefill_attention_dp=8; prefill_ep=8;"
        "decode_workers=1; decode_tp=1; decode_attention_dp=8; decode_ep=8; ep=8; attention_dp=8"
    )
    load = {**EXPERTS, **CLOSED, "n_gpus": "16", "notes": notes}
    few, many = (
        [project(**{**load, "unit": unit}, batch_or_concurrency=count).predicted
         for unit in ("ms TTFT", "ms TPOT", "output tokens/s total")]
        for count in ("8", "2048")
    )  # fmt: skip
    assert all(one < two for one, two in zip(few, many, strict=True))
    assert project(**{**load, "unit": "ms end-to-end latency"}).status != OK


def test_the_ratio_of_a_rate_is_the_inverse_of_that_of_times():
    outcome = project()
    assert outcome.is_inverse
    assert outcome.time_ratio == pytest.approx(1.0 / outcome.ratio)
    assert not project(unit="s").is_inverse
    assert not project(**CLOSED).is_inverse
    assert project(**{**CLOSED, "unit": "output tokens/s/GPU"}).is_inverse


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


SHORT_LOOP = {"phase": "serving (closed loop, max concurrency)", "output_len": "128"}


@pytest.mark.parametrize(
    ("model", "kept"),
    [("DeepSeek-R1", "feed_forward"), ("gpt-oss-120b", "experts"), ("Llama-3.1-8B", "all")],
)
def test_layers_that_checkpoints_in_4_bits_leave_wide(model, kept):
    row = {**ROW, "model": model, "gpu": "B200", "precision": "FP4", "n_gpus": "8", "tp": "8"}
    case = read_case(row, Shared(), Without("", {}))
    assert case.deployment.narrow_layers == kept
    case = read_case({**row, "precision": "BF16"}, Shared(), Without("", {}))
    assert case.deployment.narrow_layers == "all"


def test_lengths_of_a_benchmark_that_draws_up_to_them():
    def mean(**row):
        case = read_case({**ROW, **SHORT_LOOP, **row}, Shared(), Without("", {}))
        return case.work.draw().input_tokens.mean()

    assert mean() == 128
    assert 50 < mean(source="sgl-project/sglang pull request") < 80
    assert mean(source="sgl-project/sglang", notes="random_range_ratio=1.0") == 128


@pytest.mark.parametrize(
    ("framework", "tokens"), [("vLLM 0.12.0", 1632), ("SGLang 0.5.1", 1628), ("TensorRT-LLM", 632)]
)
def test_runs_of_aiconfigurator_have_the_limits_that_it_writes(framework, tokens):
    row = {**ROW, **SHORT_LOOP, "framework": framework, "source": "ai-dynamo/aiconfigurator sample"}
    case = read_case(row, Shared(), Without("", {}))
    assert case.scheduler.max_num_batched_tokens == tokens
    case = read_case({**row, "notes": "date=2026-01-01"}, Shared(), Without("", {}))
    assert case.scheduler.max_num_batched_tokens >= 8192
