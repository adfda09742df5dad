import pytest

from projector.config.constants import (
    Changes,
    Parameter,
    own_run_noise,
    own_run_parameters,
    training_parameters,
)
from projector.config.device_file import load_device
from projector.config.load import load_job
from projector.errors import ConfigError


def job(device="h100"):
    return load_job(
        {
            "model": "llama3_8b",
            "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096},
            "cluster": {"device": device, "nodes": 1},
        }
    )


def test_every_parameter_has_a_prior_and_a_value_of_its_architectures():
    for parameter in training_parameters():
        assert parameter.lower < parameter.prior < parameter.upper
        assert 0.0 < parameter.log_width < 1.0
    held = [name for name in ("a100", "h100", "b200", "mi325x", "mi355x") if _values(job(name))]
    assert held == ["a100", "h100", "b200", "mi325x", "mi355x"]


def _values(of):
    return {p.name: p.of(of) for p in training_parameters() if p.concerns(of)}


def test_devices_of_one_architecture_share_its_constants():
    names = ("h100", "h200", "h800", "gh200")
    shares = [load_device(name).training_gemm_share for name in names]
    assert all(each == shares[0] for each in shares)


def test_a_device_of_an_unknown_architecture_takes_those_of_others():
    other = load_device({"extends": "h100", "architecture": "mine"})
    assert other.training_gemm_share.keys() == {"16_bit", "8_bit"}
    assert other.sources["training_gemm_share.16_bit"].startswith("other family: ")


def test_a_device_may_state_its_own():
    own = load_device({"extends": "h100", "training_gemm_share": {"16_bit": 0.7}})
    assert own.training_gemm_share["16_bit"] == 0.7
    assert own.training_gemm_share["8_bit"] == load_device("h100").training_gemm_share["8_bit"]


def test_changes_reach_only_the_jobs_of_their_architecture_and_keep_devices_one_object():
    first, second, other = job(), job(), job("b200")
    second = second.model_copy(update={"cluster": first.cluster})
    changes = Changes()
    values = {"hopper_16_bit": 0.5}
    changed = [changes.of(each, values) for each in (first, second, other)]
    assert changed[0].cluster.device.training_gemm_share["16_bit"] == 0.5
    assert changed[0].cluster.device is changed[1].cluster.device
    assert changed[2] is other
    assert first.cluster.device.training_gemm_share["16_bit"] != 0.5


def test_changes_of_fields_outside_the_device():
    sync = Parameter("sync", "cluster.software.host_sync_us", 40.0, 0.5)
    assert Changes((sync,)).of(job(), {"sync": 80.0}).cluster.software.host_sync_us == 80.0
    assert sync.of(job()) == job().cluster.software.host_sync_us


def test_unknown_names_and_fields_are_refused():
    with pytest.raises(ConfigError, match="unknown parameter 'hoper_16_bit'; known: ampere_16_bit"):
        Changes().of(job(), {"hoper_16_bit": 1.0})
    wrong = Parameter("wrong", "cluster.software.nothing", 1.0, 0.1)
    with pytest.raises(ConfigError, match="nothing is None, not a number"):
        wrong.of(job())
    with pytest.raises(ConfigError, match="SoftwareConfig has no field 'nothing'"):
        Changes((wrong,)).of(job(), {"wrong": 1.0})


def test_parameters_of_own_runs_start_from_the_device():
    device = load_device("h100")
    found = {parameter.field: parameter for parameter in own_run_parameters(device)}
    memory = found["cluster.device.training_memory_share"]
    assert (memory.prior, memory.log_width) == (1.0, 0.3)
    links = found["cluster.device.scale_up_efficiency"]
    assert (links.prior, links.upper) == (device.scale_up_efficiency, 1.0)
    gemm = found["cluster.device.training_gemm_share.16_bit"]
    assert gemm.prior == device.training_gemm_share["16_bit"]
    assert 0.0 < own_run_noise() < 0.2
