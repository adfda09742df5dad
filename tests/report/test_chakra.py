"""Execution traces of Chakra: the schema, the graph of nodes, and their times when replayed."""

import json
from collections import Counter, defaultdict

import pytest

import projector
from projector.errors import ConfigError
from projector.projection.timeline.build import build_timeline
from projector.report import chakra

NODE = {
    1: "id", 2: "name", 3: "type", 4: "ctrl_deps", 5: "data_deps", 6: "start_time_micros",
    7: "duration_micros", 10: "attr",
}  # fmt: skip
ATTRIBUTE = {1: "name", 9: "int64_val", 27: "bool_val", 29: "string_val"}
LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(2, 8)

DENSE = {
    "model": {"extends": "llama3.1_8b", "num_layers": 8},
    "cluster": {"device": "h100", "nodes": 2},
    "training": {"micro_batch_size": 1, "global_batch_size": 8, "seq_length": 4096},
    "parallelism": {"tp": 2, "cp": 2, "pp": 2},
}
JOBS = {
    "dense": DENSE,
    "overlapped": {
        **DENSE,
        "parallelism": {**DENSE["parallelism"], "tp_comm_overlap": True, "overlap_p2p_comm": False},
    },
    "sharded": {**DENSE, "parallelism": {"tp": 2, "fsdp": 2}},
    "offloaded": {
        **DENSE,
        "training": {
            **DENSE["training"],
            "activation_offload_fraction": 0.5,
            "optimizer": {"offload_fraction": 0.5},
        },
    },
    "experts": {
        **DENSE,
        "model": {"extends": "mixtral_8x7b", "num_layers": 8},
        "parallelism": {"pp": 4, "vpp": 2, "ep": 4},
        "training": {**DENSE["training"], "global_batch_size": 16, "recompute": "full"},
    },
    "zero bubble": {
        **DENSE,
        "training": {**DENSE["training"], "schedule": "zerobubble"},
        "parallelism": {"pp": 4},
    },
    "two copies": {
        **DENSE,
        "training": {**DENSE["training"], "schedule": "dualpipe", "global_batch_size": 32},
        "parallelism": {"pp": 2},
    },
    "one device": {
        **DENSE,
        "model": "llama3.2_1b",
        "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 1},
        "parallelism": {},
    },
}


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        value, at = varint(data, at)
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        else:
            assert key & 7 == 0
        yield key >> 3, value


def messages(path):
    data, at = path.read_bytes(), 0
    while at < len(data):
        size, at = varint(data, at)
        yield data[at : at + size]
        at += size


def numbers(data):
    at, found = 0, []
    while at < len(data):
        value, at = varint(data, at)
        found.append(value)
    return found


def node_of(message):
    node = {"attr": {}, "ctrl_deps": [], "data_deps": []}
    for number, value in fields(message):
        name = NODE[number]
        if name == "attr":
            given = {ATTRIBUTE[key]: item for key, item in fields(value)}
            key = given.pop("name").decode()
            ((kind, item),) = given.items()
            node["attr"][key] = item.decode() if kind == "string_val" else item
        elif name.endswith("deps"):
            node[name] = numbers(value)
        else:
            node[name] = value.decode() if name == "name" else value
    return node


@pytest.fixture(scope="module", params=JOBS)
def written(request, tmp_path_factory):
    result = projector.project_performance(projector.load_job(JOBS[request.param]))
    folder = tmp_path_factory.mktemp("chakra") / "step"
    chakra.write_chakra(result, folder)
    files = {}
    for device in range(result.gpus):
        metadata, *nodes = messages(folder / f"step.{device}.et")
        assert dict(fields(metadata)) == {1: b"0.0.4"}
        files[device] = [node_of(message) for message in nodes]
    groups = json.loads((folder / "comm_groups.json").read_text())
    assert len(list(folder.iterdir())) == result.gpus + 1
    return result, files, groups


def deps(node):
    return [*node["ctrl_deps"], *node["data_deps"]]


def test_nodes_depend_only_on_nodes_before_them(written):
    _, files, _ = written
    for nodes in files.values():
        for number, node in enumerate(nodes):
            assert node["id"] == number
            assert all(dep < number for dep in deps(node))
            assert len(set(deps(node))) == len(deps(node))
            assert number == 0 or node["start_time_micros"] == 0 or deps(node)


def test_a_device_alone_takes_the_step(written):
    result, files, _ = written
    for nodes in files.values():
        ends = []
        for node in nodes:
            start = max((ends[dep] for dep in deps(node)), default=0)
            assert start == node["start_time_micros"]
            ends.append(start + node["duration_micros"])
        assert max(ends) == pytest.approx(result.iteration_time_s * 1e6, abs=1.0)


def test_what_is_received_comes_when_it_was_sent(written):
    _, files, _ = written
    sent, received = {}, {}
    for device, nodes in files.items():
        for node in nodes:
            facts = node["attr"]
            if node["type"] in (SEND, RECEIVE):
                assert device == facts["comm_src" if node["type"] == SEND else "comm_dst"]
                of = sent if node["type"] == SEND else received
                key = tuple(facts[f"comm_{name}"] for name in ("src", "dst", "tag", "size"))
                assert key not in of
                of[key] = node
    assert sent.keys() == received.keys()
    for key, node in sent.items():
        arrived = node["start_time_micros"] + node["duration_micros"]
        end = received[key]["start_time_micros"] + received[key]["duration_micros"]
        assert arrived <= end
        waited = received[key]["duration_micros"]
        assert not waited or end - arrived <= 1


def test_members_of_a_group_call_the_same_collectives(written):
    result, files, groups = written
    called = defaultdict(dict)
    for device, nodes in files.items():
        for node in nodes:
            if node["type"] == COLLECTIVE:
                facts = node["attr"]
                assert device in groups[facts["pg_name"]]
                call = facts["comm_type"], facts["comm_size"], node["name"]
                called[facts["pg_name"]].setdefault(device, []).append(call)
    for name, of_device in called.items():
        assert sorted(of_device) == sorted(groups[name])
        assert len({tuple(calls) for calls in of_device.values()}) == 1
    assert bool(called) == (result.gpus > 1)


def test_work_is_that_of_the_projection(written):
    result, files, _ = written
    kinds = Counter(node["type"] for nodes in files.values() for node in nodes)
    assert {LOAD, STORE} <= kinds.keys() or result.job.training.activation_offload_fraction == 0
    timeline = build_timeline(result)
    copies = result.gpus // len(timeline.begin_ps)
    flop = sum(node["attr"].get("num_ops", 0) for nodes in files.values() for node in nodes)
    assert flop == pytest.approx(copies * timeline.flop.sum(), rel=1e-9)
    for nodes in files.values():
        assert all(node["attr"]["is_cpu_op"] in (0, 1) for node in nodes)
        assert not any(node["attr"]["is_cpu_op"] for node in nodes if node["type"] != COMPUTE)


def test_too_many_nodes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(chakra, "MOST_NODES", 1000)
    result = projector.project_performance(projector.load_job(JOBS["dense"]))
    with pytest.raises(ConfigError, match=r"1,000 nodes; give a smaller global_batch_size"):
        chakra.write_chakra(result, tmp_path / "new")


def test_protobuf_reads_what_the_schema_says(tmp_path):
    """The messages of et_def.proto (mlcommons/chakra 6dc63e1), as far as they are used."""
    pool = pytest.importorskip("google.protobuf.descriptor_pool").DescriptorPool()
    pb = pytest.importorskip("google.protobuf.descriptor_pb2")
    factory = pytest.importorskip("google.protobuf.message_factory")
    unknown = pytest.importorskip("google.protobuf.unknown_fields")
    file = pb.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    kinds = pb.FieldDescriptorProto
    for title, rows in {
        "AttributeProto": {
            "name": (1, kinds.TYPE_STRING), "int64_val": (9, kinds.TYPE_INT64),
            "bool_val": (27, kinds.TYPE_BOOL), "string_val": (29, kinds.TYPE_STRING),
        },
        "GlobalMetadata": {"version": (1, kinds.TYPE_STRING)},
        "Node": {
            "id": (1, kinds.TYPE_UINT64), "name": (2, kinds.TYPE_STRING),
            "type": (3, kinds.TYPE_INT32), "ctrl_deps": (4, kinds.TYPE_UINT64),
            "data_deps": (5, kinds.TYPE_UINT64), "start_time_micros": (6, kinds.TYPE_UINT64),
            "duration_micros": (7, kinds.TYPE_UINT64), "attr": (10, kinds.TYPE_MESSAGE),
        },
    }.items():  # fmt: skip
        message = file.message_type.add(name=title)
        for name, (number, kind) in rows.items():
            several = name in ("ctrl_deps", "data_deps", "attr")
            label = kinds.LABEL_REPEATED if several else kinds.LABEL_OPTIONAL
            field = message.field.add(name=name, number=number, type=kind, label=label)
            if name == "attr":
                field.type_name = ".ChakraProtoMsg.AttributeProto"
    pool.Add(file)
    kind = factory.GetMessageClass(pool.FindMessageTypeByName("ChakraProtoMsg.Node"))
    result = projector.project_performance(projector.load_job(JOBS["dense"]))
    chakra.write_chakra(result, tmp_path / "step")
    _, *nodes = messages(tmp_path / "step" / "step.9.et")
    for message in nodes:
        read, own = kind.FromString(message), node_of(message)
        assert read.SerializeToString()
        assert not any(len(unknown.UnknownFieldSet(one)) for one in (read, *read.attr))
        assert (read.id, read.name, read.duration_micros) == (
            own["id"], own["name"], own.get("duration_micros", 0),
        )  # fmt: skip
        assert [*read.ctrl_deps, *read.data_deps] == deps(own)
        assert {one.name for one in read.attr} == own["attr"].keys()


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31, 2**63])
def test_numbers_are_varints(value):
    assert varint(chakra._varint(value), 0) == (value, len(chakra._varint(value)))
