"""Values that no file can hold, from Python: each is refused by one error that stays short."""

import numpy as np
import pytest

from projector import load_job, project_jobs, project_performance, simulate_schedule, sweep
from projector.errors import LONGEST_MESSAGE, ConfigError, ProjectorError, shown

BASE = {
    "model": "llama3_8b",
    "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096},
    "cluster": {"device": "mi300x", "nodes": 1},
}


def nested(kind, depth):
    value = kind()
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


STRANGE = {
    "list": nested(list, 3000),
    "dict": nested(dict, 3000),
    "array": np.arange(4),
    "array of lists": np.array([nested(list, 3000)], dtype=object),
    "NotImplemented": NotImplemented,
    "denormal": 5e-324,
    "text": "x" * 100_000,
    "integer": 10**5000,
    "type": int,
}


def test_a_value_that_nests_too_deeply_is_told_by_its_kind():
    deep = nested(dict, 100_000)
    assert shown(deep) == "a dict nested too deeply"
    assert ConfigError("wrong", key="a", value=deep).to_dict()["value"] == shown(deep)


def _refused(call):
    with pytest.raises(ProjectorError) as error:
        call()
    assert len(str(error.value)) <= LONGEST_MESSAGE + 5


@pytest.mark.parametrize("name", STRANGE)
def test_foreign_values_are_refused(name):
    value = STRANGE[name]
    for call in (load_job, project_jobs, sweep, project_performance):
        _refused(lambda call=call: call(value))
    for section in ("model", "training", "cluster", "parallelism"):
        _refused(lambda section=section: load_job({**BASE, section: value}))
    for key in ("model.hidden_size", "training.seq_length", "cluster.device", "training.recompute"):
        _refused(lambda key=key: load_job(BASE, overrides={key: value}))
    _refused(lambda: sweep({"base": value, "axes": {"parallelism.tp": [1]}}))
    _refused(lambda: sweep({"base": BASE, "axes": value}))
    for arguments in ((value, 4, 8), ("1f1b", value, 8), ("1f1b", 4, value)):
        _refused(lambda arguments=arguments: simulate_schedule(*arguments))
