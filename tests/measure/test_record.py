"""Records on disk, and which jobs they hold for."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import projector as pj
from projector.config.job import Job
from projector.distribution import package_version
from projector.errors import ConfigError
from projector.measure import record as module
from projector.measure.devices import GpusAtHand
from projector.measure.keys import OperationKey
from projector.measure.record import Record, load_record, merge_by_job, merge_records, summary_of
from projector.measure.reduction import reduce_job
from projector.measure.tables import tables_of
from projector.measure.task import Environment
from projector.report.terminal.measure import record_report, tables_report
from thoroughness import examples

ENVIRONMENT = {
    "device": "NVIDIA H100 80GB HBM3",
    "backend": "cuda",
    "memory_bytes": 85_029_158_912,
    "torch": "2.13.0",
    "driver": "570.195.03",
}


def outcome(median_s: float = 1e-3, status: str = "ok") -> dict[str, Any]:
    timing = {"median_s": median_s, "low_s": median_s, "high_s": median_s, "repeats": 11}
    return {"status": status, "times": {"time": timing} if status == "ok" else {}}


def operation(m: int = 8192, **fields: Any) -> dict[str, Any]:
    key = {"label": "attention.qkv", "phase": "forward", "kind": "gemm", "dtype": "bf16"}
    return {"key": {**key, "m": m, "n": 6144, "k": 4096}, "outcome": outcome(**fields)}


def a_job(**overrides: Any) -> Job:
    fields = {name.replace("__", "."): value for name, value in overrides.items()}
    return pj.load_job(
        {
            "model": "mixtral_8x7b",
            "parallelism": {"tp": 2, "pp": 4, "ep": 8},
            "training": {"micro_batch_size": 1, "global_batch_size": 64, "seq_length": 4096},
            "cluster": {"device": "h100", "nodes": 8},
        },
        fields,
    )


def a_record(of: Job | None = None, **fields: Any) -> Record:
    job = of or a_job()
    reduction = reduce_job(job, 8)
    sections = {
        name: getattr(reduction.job, name).model_dump(mode="json", exclude_unset=True)
        for name in ("model", "parallelism", "training")
    }
    data = {
        "environment": Environment.parse(ENVIRONMENT),
        "device": job.cluster.device.name,
        "precision": job.training.precision,
        "reduction": reduction.to_dict(),
        "job": {**sections, "cluster": {"nodes": 1, "gpus_per_node": 8}},
        "operations": [operation()],
    }
    return Record.parse({**data, **fields})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    a_record().save(tmp_path / "record.json")
    return tmp_path / "record.json"


def test_round_trip(saved: Path) -> None:
    assert load_record(saved) == a_record()
    assert [path.name for path in saved.parent.iterdir()] == ["record.json"]


def test_saving_replaces_whole_files_alone(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ConfigError, match="No space left"):
        a_record(operations=[operation(), operation(m=1)]).save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["record.json"]


def test_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder") as raised:
        a_record().save(tmp_path / "none" / "record.json")
    assert raised.value.key == "save_benchmark"


def broken(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


def refused(path: Path, match: str) -> ConfigError:
    with pytest.raises(ConfigError, match=match) as raised:
        load_record(path)
    assert raised.value.key == "load_benchmark"
    assert str(path) in raised.value.message
    assert "\n" not in raised.value.message
    assert raised.value.to_dict()["allowed"]
    return raised.value


def test_every_truncated_file_is_refused(saved: Path) -> None:
    text = saved.read_text()
    for length in range(1, len(text.rstrip()), 37):
        saved.write_text(text[:length])
        refused(saved, "cut off")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("no json", "is not valid JSON"),
        ("[1, 2]", "holds a list"),
        ("{}", "no record of measurements"),
        ('{"schema_version": true}', "no record of measurements"),
        ('{"a": 1, "a": 2}', "key 'a' is given twice"),
        ('{"schema_version": NaN}', "NaN is no number"),
        ('{"schema_version": 1e999}', "1e999 is no number"),
        ('{"schema_version": ' + "9" * 5000 + "}", "not valid JSON"),
        ("[" * 200_000, "not valid JSON"),
        ('{"schema_version": 1, "environment": {}} trailing', "not valid JSON"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "record.json").write_text(text)
    refused(tmp_path / "record.json", match)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none.json", "does not exist")
    refused(tmp_path, "is a directory")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    refused(tmp_path / "bytes.json", "UTF-8")


def test_huge_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("projector.measure.record.MOST_BYTES", 1 << 20)
    (tmp_path / "huge.json").write_bytes(b" " * (1 << 21))
    refused(tmp_path / "huge.json", "larger than 1 MiB")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda data: data.update(schema_version=2), "a newer version"),
        (lambda data: data.update(schema_version=0), "an older version"),
        (lambda data: data.update(colour="red"), "unknown key 'colour'"),
        (lambda data: data["environment"].update(gpu="x"), "unknown key 'gpu'"),
        (lambda data: data.pop("job"), "job: is required"),
        (lambda data: data["environment"].update(backend="tpu"), "environment.backend"),
        (lambda data: data["operations"][0]["key"].update(m="8192"), "operations.0.key.m"),
        (lambda data: data["operations"][0]["key"].update(causal=1), "operations.0.key.causal"),
        (
            lambda data: data["operations"][0]["outcome"]["times"]["time"].update(median_s=-1.0),
            "operations.0.outcome.times.time.median_s",
        ),
        (
            lambda data: data["operations"][0]["outcome"]["times"]["time"].update(median_s="1"),
            "operations.0.outcome.times.time.median_s",
        ),
        (lambda data: data.update(operations={}), "operations"),
    ],
)
def test_spoilt_records_are_refused(
    saved: Path, change: Callable[[dict[str, Any]], Any], match: str
) -> None:
    refused(broken(saved, change), match)


def places(node: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List every place of a JSON value, and of a list only its first."""
    if isinstance(node, dict):
        inner = list(node.items())
    else:
        inner = list(enumerate(node[:1])) if isinstance(node, list) else []
    return [place, *(each for key, value in inner for each in places(value, (*place, key)))]


WHOLE = json.loads(a_record().model_dump_json())
ODD = [None, True, -1, 7, 0.5, 1e300, 2**70, "", "x", [], {}, [1], {"a": 1}]


@given(place=st.sampled_from(places(WHOLE)[1:]), value=st.sampled_from(ODD))
@settings(max_examples=examples(200), deadline=None)
def test_whatever_a_file_says_is_a_record_or_one_error(place: tuple[Any, ...], value: Any) -> None:
    data = json.loads(json.dumps(WHOLE))
    node = data
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "record.json")
        path.write_text(json.dumps(data))
        try:
            record = load_record(path)
            assert record_report(summary_of(record))
            assert tables_report(tables_of(record))
            record.check(a_job())
        except ConfigError:
            return
        record.save(path)
        assert load_record(path) == record


def test_record_holds_for_its_job_and_others_of_its_layers() -> None:
    record = a_record()
    assert not [text for text in record.check(a_job()) if "training." in text]
    for changed in (
        {"parallelism__pp": 8},
        {"parallelism__tp": 1},
        {"cluster__nodes": 16},
        {"training__global_batch_size": 128},
        {"training__recompute": "full"},
        {"model__num_layers": 16},
        {"cluster__device": {"extends": "h100", "hbm_gib": 60.0}},
    ):
        record.check(a_job(**changed))


def test_equal_shapes_may_be_said_in_other_words() -> None:
    record = a_record(a_job(model={**pj.load_job(a_job()).model.model_dump(), "kv_channels": 128}))
    record.check(a_job())


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"cluster__device": "h200"}, "device"),
        ({"cluster__device": "h100_pcie"}, "device"),
        ({"training__precision": "fp8"}, "training.precision"),
        ({"training__flash_attention": False}, "training.flash_attention"),
        ({"model__ffn_hidden_size": 8192}, "model.ffn_hidden_size"),
        ({"model__vocab_size": 64_000}, "model.vocab_size"),
        ({"model__moe__router_topk": 1}, "model.moe.router_topk"),
        ({"model": "llama3.1_8b", "parallelism__ep": 1}, "model."),
        ({"parallelism__cp": 2}, "parallelism.cp"),
    ],
)
def test_record_never_applies_to_another_job(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match="the record was measured") as raised:
        a_record().check(a_job(**changed))
    assert raised.value.key.startswith(f"load_benchmark.{field}")


def test_record_of_another_device_than_its_profile_holds_for_none() -> None:
    record = a_record(environment=Environment.parse({**ENVIRONMENT, "device": "NVIDIA H200"}))
    with pytest.raises(ConfigError, match="NVIDIA H200"):
        record.check(a_job())


def test_record_of_a_processor_holds_for_the_profile_of_its_name() -> None:
    environment = {**ENVIRONMENT, "device": "AMD EPYC 9575F", "backend": "cpu"}
    record = a_record(environment=Environment.parse(environment))
    record.check(a_job(cluster__device={"extends": "h100", "name": "AMD EPYC 9575F"}))
    with pytest.raises(ConfigError, match="AMD EPYC"):
        record.check(a_job())


def test_record_without_its_job_fits_none() -> None:
    with pytest.raises(ConfigError, match=r"no job\.model"):
        a_record(job={}).check(a_job())
    with pytest.raises(ConfigError, match=r"job\.model\.\w+: is required"):
        a_record(job={"model": {}}).check(a_job())


@pytest.mark.parametrize(
    ("field", "value"),
    [("cross_entropy_fusion", False), ("seq_length", 8192), ("micro_batch_size", 2)],
)
def test_other_settings_are_warned_of(field: str, value: Any) -> None:
    found = a_record().check(a_job(**{f"training__{field}": value}))
    (warning,) = [text for text in found if "training." in text]
    assert f"training.{field}" in warning
    assert f"the job has {value}: what depends on it is scaled" in warning


def test_other_experts_on_a_rank_are_warned_of() -> None:
    few, many = a_job(), a_job(parallelism__ep=2)
    of_one, of_four = a_record(few), a_record(many)
    assert not any("experts a rank" in text for text in [*of_one.check(few), *of_four.check(many)])
    (warning,) = [text for text in of_four.check(few) if "experts a rank" in text]
    assert "with 4 experts a rank, and a benchmark of the job has 1" in warning


def test_other_versions_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_hand(name: str, driver: str, torch: str) -> list[str]:
        found = GpusAtHand("nvidia", name, 8, "h100") if name else None
        monkeypatch.setattr(module, "gpus_at_hand", lambda: found)
        monkeypatch.setattr(module, "driver_at_hand", lambda: driver)
        monkeypatch.setattr(module, "installed_version", lambda _: torch)
        return a_record().check(a_job())

    same = ENVIRONMENT["device"], ENVIRONMENT["driver"], ENVIRONMENT["torch"]
    assert at_hand(*same) == []
    assert at_hand("", "", "1.0") == []
    assert at_hand("NVIDIA A40", "1.0", "1.0") == []
    torch, driver = at_hand(ENVIRONMENT["device"], "580.1", "2.14.0")
    assert "torch 2.13.0, and 2.14.0 is here" in torch
    assert "driver 570.195.03, and 580.1 is here" in driver
    at_hand("", "", "")
    (older,) = a_record(version="0.0.1").check(a_job())
    assert f"projector 0.0.1, and {package_version()} is here" in older


def test_records_of_one_job_are_merged() -> None:
    first = a_record(operations=[operation(m=1), operation(m=2), operation(m=3)])
    second = a_record(
        operations=[operation(m=2, median_s=5.0), operation(m=3, status="failed"), operation(m=4)]
    )
    merged = merge_records([first, second])
    times = {each.key.m: each.outcome.times for each in merged.operations}
    assert list(times) == [1, 2, 3, 4]
    assert times[2]["time"].median_s == 5.0
    assert times[3]["time"].median_s == 1e-3
    assert merge_records([first]) == first


def test_records_of_other_devices_or_jobs_are_not_merged() -> None:
    other = a_record(environment=Environment.parse({**ENVIRONMENT, "driver": "580.1"}))
    with pytest.raises(ConfigError, match="another driver"):
        merge_records([a_record(), other])
    differs = "another job are not merged: training.seq_length 4096 and training.seq_length 8192"
    with pytest.raises(ConfigError, match=differs):
        merge_records([a_record(), a_record(a_job(training__seq_length=8192))])
    with pytest.raises(ConfigError, match="no record"):
        merge_records([])


def test_records_are_merged_where_they_are_of_one_benchmark() -> None:
    other = a_record(environment=Environment.parse({**ENVIRONMENT, "driver": "580.1"}))
    another = a_record(a_job(training__seq_length=8192))
    again = a_record(operations=[operation(m=7)])
    merged = merge_by_job([a_record(), other, again, another])
    assert [len(record.operations) for record in merged] == [2, 1, 1]
    assert merged[1:] == [other, another]


def test_keys_of_a_record_are_those_of_rows() -> None:
    (measured,) = a_record().operations
    assert measured.key == OperationKey(
        label="attention.qkv", phase="forward", kind="gemm", dtype="bf16", m=8192, n=6144, k=4096
    )
