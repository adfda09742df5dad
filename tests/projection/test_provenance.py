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
