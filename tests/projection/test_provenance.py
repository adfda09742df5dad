import pytest

from projector.config.load import load_job
from projector.projection.provenance import provenance_of


def job_on(device):
    return load_job(
        {
            "model": "llama3.1_8b",
            "training": {"mbs": 1, "gbs": 64, "seq_length": 4096},
            "cluster": {"device": device, "nodes": 1},
        }
    )


def test_a_projection_says_whose_numbers_its_device_has():
    device = provenance_of(job_on("mi308x")).to_dict()["device"]
    assert device["name"] == "AMD Instinct MI308X"
    assert "hbm_peak_tb_per_s" in device["borrowed"]["AMD Instinct MI300X"]
    assert "hbm_latency_us" in device["assumed"]


@pytest.mark.parametrize(
    ("dispatcher", "device", "network", "ep", "words"),
    [
        ("deepep", "h100", "p5_efa", 32, "which EFA cannot"),
        ("hybridep", "b200", "p6_b200_efa", 32, "no release of it names EFA"),
        ("deepep", "h100", "a3_mega_tcpxo", 16, "alltoall is what runs"),
        ("deepep", "h100", "hgx_h100", 256, "160 ranks"),
        ("hybridep", "mi300x", "mi300x", 8, "NVIDIA alone"),
        ("deepep", "h100", "hgx_h100", 128, None),
        # Within a domain nothing passes an adapter.
        ("deepep", "h100", "p5_efa", 8, None),
        ("alltoall", "h100", "p5_efa", 32, None),
    ],
)
def test_a_dispatcher_that_a_network_cannot_run_says_so(dispatcher, device, network, ep, words):
    job = load_job(
        {
            "model": "deepseek_v3",
            "parallelism": {"ep": ep},
            "training": {
                "mbs": 1, "gbs": 1024, "seq_length": 4096, "moe": {"dispatcher": dispatcher},
            },
            "cluster": {"device": device, "nodes": 32, "network": network},
        }
    )  # fmt: skip
    told = [each for each in provenance_of(job).warnings if "dispatcher" in each]
    assert [words in each for each in told] == ([True] if words else [])
