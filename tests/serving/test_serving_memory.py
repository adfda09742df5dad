import numpy as np
import pytest

from projector.config.device_file import load_device
from projector.config.model_file import load_model
from projector.errors import ConfigError
from projector.serving.deployment import Deployment
from projector.serving.memory import serving_memories, serving_memory
from projector.units import GIB
from serving.cached import kv_cache_bytes


def deploy(model="llama3_8b", device="h100", **settings):
    nodes = settings.pop("nodes", 1)
    return Deployment.parse(
        {"model": model, "cluster": {"device": device, "nodes": nodes}, **settings}
    )


def test_weights_are_the_parameters_of_the_model():
    assert serving_memory(deploy()).weights_bytes == 2 * 8_030_261_248
    assert serving_memory(deploy("llama3_70b")).weights_bytes == 2 * 70_553_706_496
    # All of DeepSeek-V3 but its MTP module, in 8 bits where layers are linear.
    whole = serving_memory(deploy("deepseek_v3", "h200", dtype="fp8")).weights_bytes
    assert whole == pytest.approx(671.03e9, rel=0.01)


def test_narrow_weights_take_their_bytes():
    wide = serving_memory(deploy()).weights_bytes
    embedding = 2 * 128256 * 4096
    norms = 2 * (2 * 32 + 1) * 4096
    linear = wide - embedding - norms
    four = serving_memory(deploy(weight_bits=4)).weights_bytes
    scales = 4 / 128 / 2
    assert four == pytest.approx(linear * (0.25 + scales) + embedding + norms)
    fp8 = serving_memory(deploy(dtype="fp8")).weights_bytes
    assert fp8 == pytest.approx((linear - embedding) / 2 + 2 * embedding + norms)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_tensor_parallelism_divides_all_but_the_norms(tp):
    norms = 2 * (2 * 32 + 1) * 4096
    found = serving_memory(deploy(tp=tp)).weights_bytes
    assert found == (2 * 8_030_261_248 - norms) / tp + norms


def test_stages_hold_their_layers():
    memory = serving_memory(deploy("deepseek_v3", "h200", nodes=2, tp=4, pp=4))
    assert list(memory.stage_layers) == [16, 15, 15, 15]
    whole = serving_memory(deploy("deepseek_v3", "h200", tp=4)).weights_bytes
    assert memory.stage_weights_bytes.sum() == pytest.approx(whole, rel=1e-12)
    # The first three layers are dense.
    assert memory.stage_weights_bytes[0] < memory.stage_weights_bytes[1]


def test_experts_are_divided_over_all_devices_and_attention_is_replicated():
    model = load_model("deepseek_v3")
    groups = {"tp": 1, "attention_dp": 8, "ep": 8}
    alone = serving_memory(deploy("deepseek_v3", "h200")).weights_bytes
    divided = serving_memory(deploy("deepseek_v3", "h200", **groups)).weights_bytes
    experts = 2.0 * 58 * 256 * 3 * model.hidden_size * model.moe.ffn_hidden_size
    assert alone - divided == pytest.approx(experts * 7 / 8)
    split = serving_memory(deploy("deepseek_v3", "h200", **{**groups, "ep": 2})).weights_bytes
    assert split == pytest.approx(divided)


@pytest.mark.parametrize("model", ["llama3_8b", "gemma2_2b", "deepseek_v2_lite"])
@pytest.mark.parametrize("kind", ["bf16", "fp8"])
def test_the_cache_is_that_of_whole_pages(model, kind):
    deployment = deploy(model, kv_cache_bytes=kind, page_tokens=32)
    memory = serving_memory(deployment)
    held = memory.cache_bytes(np.array([3, 3, 3]), np.array([1, 32, 33]))
    exact = [kv_cache_bytes(deployment.model, 3, n, deployment.kv_cache_bytes) for n in (32, 64)]
    assert list(held) == pytest.approx([exact[0], exact[0], exact[1]])
    assert memory.page_bytes == 32 * memory.cache_bytes_per_token
    assert memory.cache_bytes_per_token == kv_cache_bytes(
        deployment.model, 1, 1, deployment.kv_cache_bytes
    )


def test_pages_of_one_token_waste_nothing():
    memory = serving_memory(deploy(page_tokens=1))
    assert memory.cache_bytes(1, 1001) == kv_cache_bytes(memory.deployment.model, 1, 1001)
    lengths = np.arange(1, 1601)
    paged = serving_memory(deploy(page_tokens=16))
    waste = (paged.cache_bytes(1, lengths) - memory.cache_bytes(1, lengths)).mean()
    # The last page of 16 tokens leaves 0 to 15 empty.
    expected = 7.5 * paged.cache_bytes_per_token
    assert waste == pytest.approx(expected)


def test_a_windowed_cache_stops_growing():
    memory = serving_memory(deploy("gemma2_2b"))
    window = memory.deployment.model.sliding_window
    grown = np.diff(memory.cache_bytes(1, np.array([0, 1, 2, 3]) * window))
    assert grown[1] == grown[2] == pytest.approx(grown[0] / 2)


def test_the_latent_lies_on_every_rank_and_groups_divide_sequences():
    one, tensor, groups = (
        serving_memory(deploy("deepseek_v3", "h200", tp=tp, attention_dp=dp, ep=8))
        for tp, dp in ((8, 1), (8, 1), (1, 8))
    )
    assert one.cache_bytes(16, 4096) == tensor.cache_bytes(16, 4096)
    assert groups.cache_bytes(16, 4096) == tensor.cache_bytes(16, 4096) / 8
    assert groups.cache_bytes(17, 4096) == tensor.cache_bytes(3, 4096)


def test_the_largest_batch_fits_and_one_more_does_not():
    for settings in ({}, {"tp": 2}, {"pp": 3}, {"tp": 2, "attention_dp": 2}):
        memory = serving_memory(deploy(**settings))
        contexts = np.array([1, 1000, 100_000])
        for context, most in zip(contexts, memory.max_batch(contexts), strict=True):
            assert memory.shortfall_bytes(int(context), int(most)) == 0.0
            assert memory.shortfall_bytes(int(context), int(most) + 1) > 0.0
            with pytest.raises(ConfigError) as caught:
                memory.check_fits(int(context), int(most) + 1)
            assert caught.value.allowed == f"<= {most}"


def test_more_memory_never_lowers_the_largest_batch():
    batches = []
    for gib in (10, 20, 40, 80, 160):
        device = {"extends": "h100", "hbm_gib": gib}
        batches.append(int(serving_memory(deploy(device=device)).max_batch(4096)))
    assert batches == sorted(batches)
    assert batches[0] == 0 < batches[-1]


def test_what_does_not_fit_says_by_how_much():
    memory = serving_memory(deploy("llama3_70b"))
    assert memory.max_batch(1) == 0
    device = load_device("h100")
    missing = 2 * 70_553_706_496 + memory.workspace_bytes + memory.cache_bytes(1, 1)
    missing += (device.context_gib - 0.9 * device.hbm_gib) * GIB
    assert memory.shortfall_bytes(1) == pytest.approx(missing)
    with pytest.raises(ConfigError, match="GiB"):
        memory.check_fits(1)


def test_an_engine_takes_its_share_and_groups_take_communicators():
    device = load_device("h100")
    half = serving_memory(deploy(gpu_memory_utilization=0.5))
    assert half.usable_bytes == pytest.approx((0.5 * device.hbm_gib - device.context_gib) * GIB)
    split = serving_memory(deploy(tp=2, pp=2))
    expected = device.context_gib + 2 * device.communicator_gib
    assert split.reserve_bytes == pytest.approx(expected * GIB)
    cluster = {"device": "h100", "memory_reserve_gib": 7}
    stated = Deployment.parse({"model": "llama3_8b", "cluster": cluster})
    assert serving_memory(stated).reserve_bytes == 7 * GIB


def test_larger_steps_need_more_room():
    sizes = [serving_memory(deploy(max_step_tokens=n)).workspace_bytes for n in (512, 8192, 65536)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_a_batch_of_deployments_equals_each():
    deployments = [deploy(), deploy("mixtral_8x7b", tp=4), deploy("gemma2_2b", "mi300x", pp=2)]
    for found, deployment in zip(serving_memories(deployments), deployments, strict=True):
        alone = serving_memory(deployment)
        assert found.stage_weights_bytes.tolist() == alone.stage_weights_bytes.tolist()
        assert found.workspace_bytes == alone.workspace_bytes


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"ep": 2}, "ep"),
        ({"model": "mixtral_8x7b", "tp": 4, "ep": 3}, "ep"),
        ({"model": "mixtral_8x7b", "tp": 4, "ep": 8}, "ep"),
        ({"tp": 2, "attention_dp": 8}, "tp"),
        ({"kv_cache_bytes": 3}, "kv_cache_bytes"),
        ({"kv_cache_bytes": "fp4"}, "kv_cache_bytes"),
        ({"page_tokens": 0}, "page_tokens"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
    ],
)
def test_impossible_deployments_are_named(settings, key):
    with pytest.raises(ConfigError) as caught:
        deploy(**settings)
    assert caught.value.key.endswith(key)


def test_a_cache_of_fp4_has_scales():
    deployment = deploy(device="b200", kv_cache_dtype="fp4")
    memory = serving_memory(deployment)
    assert memory.cache_bytes_per_token == kv_cache_bytes(deployment.model, 1, 1, 0.5 + 1 / 16)
