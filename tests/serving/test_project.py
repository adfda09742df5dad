import json
from contextlib import suppress

import numpy as np
import pytest

import projector as pj
from projector.config.bands import SERVING_PHASES, band_of
from projector.config.device_file import load_device
from projector.errors import ConfigError
from projector.serving.api import read_case
from projector.serving.deployment import Deployment
from projector.serving.rates import LoadGrid, load_rates
from projector.serving.step import LIMITS

STABLE = (
    "ttft_ms",
    "tpot_ms",
    "tokens_per_s_per_gpu",
    "max_batch",
    "kv_cache_gib",
    "bound_prefill",
    "bound_decode",
)


def project(model="llama3.1_8b", device="h100", **settings):
    return pj.project_serving(model, device, **settings)


def test_json_has_the_stable_keys_and_the_envelope():
    found = project(batch=4, context=1024).to_dict()
    assert {*STABLE, "schema_version", "version", "warnings", "uncertainty"} <= found.keys()
    assert json.loads(json.dumps(found, allow_nan=False))["load"]["batch"] == 4
    assert found["bound_decode"] in LIMITS
    assert found["fits"] is True
    assert found["verdict"] == "fits"


@pytest.mark.parametrize("settings", [{}, {"tp": 2, "pp": 2, "output": 100}, {"dtype": "fp8"}])
@pytest.mark.parametrize("model", ["llama3.1_8b", "mixtral_8x7b", "deepseek_v2_lite"])
def test_terms_and_limits_add_up(model, settings):
    found = project(model, batch=8, **settings)
    for step in (found.prefill, found.decode):
        assert sum(step.breakdown_s.values()) == pytest.approx(step.time_s)
        assert sum(step.limits_s.values()) == pytest.approx(step.time_s)


def test_one_sequence_decodes_at_the_memory_rate_and_long_prompts_at_the_matrix_rate():
    found = project(batch=1, context=2048)
    assert (found.prefill.bound, found.decode.bound) == ("compute", "memory")


def test_throughput_is_the_batch_over_the_time_of_a_token():
    found = project(batch=16, tp=2)
    assert found.tokens_per_s_per_gpu == pytest.approx(16 / found.tpot_s / 2)
    with_output = project(batch=16, tp=2, output=1)
    assert with_output.prompts_s == pytest.approx(16 * with_output.ttft_s)
    assert with_output.tokens_per_s_per_gpu < found.tokens_per_s_per_gpu


def test_stages_hold_a_part_of_the_batch_each():
    found = project(batch=9, pp=2)
    assert found.decode.sequences == 5
    assert found.tpot_s >= found.decode.time_s


def test_largest_batch_and_longest_prompt_are_the_last_that_fit():
    found = project(batch=8, context=4096, output=64, tp=1)
    most = found.max_batch
    assert project(batch=most, context=4096, output=64, tp=1).fits
    more = project(batch=most + 1, context=4096, output=64, tp=1)
    assert not more.fits
    assert more.verdict == "does_not_fit"
    longest = project(batch=8, context=found.max_context, output=64, tp=1)
    assert longest.fits
    assert not project(batch=8, context=longest.max_context + 1, output=64, tp=1).fits


def test_a_model_that_does_not_fit_is_projected():
    found = project("llama3.1_405b")
    assert (found.fits, found.max_batch, found.max_context) == (False, 0, 0)
    assert found.tpot_s > 0.0


def test_nodes_follow_the_devices_of_the_replica():
    found = project("llama3.1_405b", tp=8, pp=2)
    assert found.deployment.cluster.nodes == 2
    assert "cluster.nodes" in found.provenance["derived"]


def test_more_tokens_than_positions_are_warned_about():
    assert not project("llama3_8b", context=4096).warnings
    (warning,) = project("llama3_8b", context=8000, output=400).warnings
    assert "8,192 positions" in warning


def test_a_type_that_the_device_lacks_is_warned_about():
    (warning,) = project(device="a100", dtype="fp8").warnings
    assert "computes fp8 as" in warning


def test_a_mapping_a_file_and_arguments_say_the_same(tmp_path):
    mapping = {"model": "llama3_8b", "device": "mi300x", "tp": 2, "load": {"batch": 3}}
    path = tmp_path / "serve.yaml"
    path.write_text(json.dumps(mapping))
    expected = project("llama3_8b", "mi300x", tp=2, batch=3).to_dict()
    assert pj.project_serving(deployment=mapping).to_dict() == expected
    assert pj.project_serving(deployment=path).to_dict() == expected
    loaded = pj.project_serving(deployment=mapping).deployment
    assert pj.project_serving(deployment=loaded, batch=3).to_dict() == expected
    assert pj.project_serving(deployment=path, overrides={"tp": 4}).deployment.tp == 4


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"batch": 0}, "load.batch"),
        ({"context": 0}, "load.context"),
        ({"tp": 3}, "tp"),
        ({"bacth": 3}, "bacth"),
        ({"overrides": {"load.prompts": 9}, "batch": 2}, "load.prompts"),
        ({"deployment": {"device": "h100", "cluster": {"device": "h100"}}}, "device"),
        ({"deployment": 3}, "config"),
        ({"tp": 16, "overrides": {"cluster.nodes": 1}}, "tp"),
    ],
)
def test_bad_input_names_its_key(settings, key):
    with pytest.raises(ConfigError) as caught:
        project(**settings)
    assert caught.value.key == key


def test_model_and_device_are_required():
    with pytest.raises(ConfigError, match="model"):
        pj.project_serving(device="h100")
    with pytest.raises(ConfigError, match="device"):
        pj.project_serving("llama3_8b")


def test_representations_name_the_load():
    found = project(batch=4)
    assert "batch 4" in repr(found)
    assert "<table>" in found._repr_html_()


def test_rent_gives_the_cost_of_tokens_and_none_is_assumed():
    assert project(batch=4).to_dict()["usd_per_million_tokens"] is None
    found = project(batch=4, overrides={"load.usd_per_gpu_hour": 3.6})
    expected = 3.6 / 3600.0 / found.tokens_per_s_per_gpu * 1e6
    assert found.usd_per_million_tokens == pytest.approx(expected)
    with pytest.raises(ConfigError) as caught:
        project(overrides={"load.usd_per_gpu_hour": -1})
    assert caught.value.key == "load.usd_per_gpu_hour"


H100 = "NVIDIA H100 SXM 80GB"


def test_bands_are_those_of_the_phase_and_not_of_the_rows_of_another():
    found = project("llama3.1_70b", tp=8, batch=64, context=4096)
    decode, prefill = (
        band_of("serving", (f"hopper.{phase}.dense", f"{phase}.dense", phase, "hopper.dense"), H100)
        for phase in ("decode", "prefill")
    )
    assert decode != prefill
    assert found.uncertainty == found.to_dict()["decode"]["uncertainty"] == decode.to_dict()
    assert found.to_dict()["prefill"]["uncertainty"] == prefill.to_dict()
    whole = project("llama3.1_70b", tp=8, batch=64, context=4096, output=64)
    assert "latency" in whole.uncertainty["basis"]
    experts = project("mixtral_8x7b", tp=8, batch=64, context=4096)
    assert experts.uncertainty != decode.to_dict()
    assert whole.to_dict()["decode"]["uncertainty"] == decode.to_dict()


@pytest.mark.parametrize("phase", SERVING_PHASES)
def test_every_phase_has_a_band(phase):
    assert phase.replace("_", " ") in project(batch=1).band_of(phase).basis


@pytest.mark.parametrize("key", sorted({*Deployment.model_fields, "weight_bits"}))
@pytest.mark.parametrize(
    "value", [[], {}, [[1]], "", "no such", True, -1, 0.3, 1e400, float("nan")]
)
def test_no_value_of_a_field_ends_in_anything_but_an_answer_or_an_error(key, value):
    with suppress(ConfigError):
        project(batch=1, context=16, tp=1, overrides={key: value})


def test_a_field_of_the_device_may_be_overridden_by_its_short_name():
    short = project(batch=1, overrides={"device.hbm_gib": 40})
    assert short.max_batch == project(batch=1, overrides={"cluster.device.hbm_gib": 40}).max_batch
    assert short.max_batch < project(batch=1).max_batch


def test_a_field_of_the_load_beside_it_says_where_it_belongs():
    with pytest.raises(ConfigError, match=r"write load\.batch") as caught:
        project(
            deployment={"model": "llama3.1_8b", "device": "h100", "batch": 4},
            model=None,
            device=None,
        )
    assert caught.value.key == "batch"


def test_splits_that_cannot_be_name_those_that_can():
    for settings, allowed in (({"tp": 3}, [1, 2, 4, 8, 16, 32]), ({"pp": 33}, "<= 32")):
        with pytest.raises(ConfigError) as caught:
            project(batch=1, **settings)
        assert caught.value.allowed == allowed


def test_prefill_on_its_own_devices_is_not_simulated_as_if_it_were_beside_decode():
    with pytest.raises(ConfigError) as caught:
        project(batch=4, output=16, rate_per_s=2.0, disaggregated={})
    assert caught.value.key == "disaggregated"


def test_requests_of_one_token_are_served_without_a_warning(recwarn):
    found = project(batch=1, context=64, output=1, rate_per_s=2.0, overrides={"load.requests": 50})
    assert found.under_load.output_tokens_per_s > 0.0
    assert not recwarn.list


@pytest.mark.parametrize("names", [("kv_cache_bytes", "kv_cache_dtype"), ("rate_per_s", "rate")])
@pytest.mark.parametrize("turn", [1, -1])
def test_a_file_with_a_field_and_its_alias_names_both_and_an_override_replaces_either(names, turn):
    first, second = names[::turn]
    inside = names[1] == "rate"
    given = {first: 1, second: 1}
    files = {"model": "llama3.1_8b", "device": "h100", "load": {"batch": 1, "output": 4}}
    section = files["load"] if inside else files
    section.update(given)
    with pytest.raises(ConfigError, match=f"'{names[0]}' .* alias '{names[1]}'"):
        read_case(files)
    del section[second]
    case = read_case(files, {f"load.{second}" if inside else second: 2})
    owner = case.traffic if inside else case.deployment
    assert getattr(owner, names[0]) == 2


@pytest.mark.parametrize("settings", [{"model": "nope"}, {"model": {"name": "x", "base": 1}}])
def test_an_unknown_model_is_named_once(settings):
    with pytest.raises(ConfigError) as caught:
        project(batch=1, **settings)
    assert "model.model" not in f"{caught.value} {caught.value.key}"
    assert caught.value.key.split(".")[0] == "model"


@pytest.mark.parametrize("weights", [None, "int8", "int4"])
@pytest.mark.parametrize("device", ["h100", "b200", "mi300x"])
def test_more_memory_bandwidth_slows_no_decode_step(device, weights):
    base = load_device(device)
    deployments = [
        Deployment.parse(
            {
                "model": "llama3.1_70b",
                "tp": 8,
                "weights": weights,
                "cluster": {
                    "device": base.model_copy(
                        update={"hbm_peak_tb_per_s": float(base.hbm_peak_tb_per_s) * factor}
                    )
                },
            }
        )
        for factor in (0.5, 0.8, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)
    ]
    many = np.arange(len(deployments))
    for batch in (1, 16, 64, 128):
        rates = load_rates(LoadGrid.of(deployments, deployment=many, batch=batch, context=4096))
        assert np.all(np.diff(rates.tpot_s) <= 1e-9 * rates.tpot_s[:-1])


def test_a_deployment_stands_first_as_a_job_does(tmp_path):
    deployment = {"model": "llama3.1_8b", "device": "h100", "tp": 2}
    one, other = pj.project_serving(deployment), pj.project_serving("llama3.1_8b", "h100", tp=2)
    assert one.to_dict() == other.to_dict()
    assert pj.project_serving(one.deployment).to_dict() == other.to_dict()
    file = tmp_path / "serve.yaml"
    file.write_text("model: llama3.1_8b\ndevice: h100\ntp: 2\n")
    assert pj.project_serving(file).to_dict() == other.to_dict()
