import json

import pytest

import projector as pj
from projector.errors import ConfigError
from projector.serving.limits import LIMITS

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
