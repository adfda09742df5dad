"""Files and texts that are meant to hurt: they end in one error, soon and with little memory."""

import json
import os
import threading
import time
from pathlib import Path

import pytest
import yaml

import projector as pj
from projector.config import resources
from projector.config.device_file import load_device
from projector.config.first_order import first_order_device
from projector.config.load import parse_override
from projector.config.model_file import load_model, read_json
from projector.config.yaml_file import MAX_DEPTH, MAX_NODES, check_nesting, parse_yaml, read_text
from projector.errors import ConfigError
from projector.topology.node import read_node

LONG = 50_000


def load_node(path):
    return read_node(path, "node")


@pytest.mark.parametrize(
    "text",
    [
        "[" * LONG + "]" * LONG,
        "[" * LONG,
        "{a: " * LONG + "1" + "}" * LONG,
        "- " * LONG + "1",
        "? " * LONG + "1",
        "".join(f"{' ' * depth}a:\n" for depth in range(2000)),
        "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 400)),
    ],
    ids=["lists", "cut off", "mappings", "dashes", "keys", "indented", "aliases"],
)
def test_deep_nesting_is_refused_before_it_is_parsed(text):
    # It ended the interpreter, also as the value of an override.
    with pytest.raises(ConfigError, match="too deep for a configuration"):
        parse_yaml(text)
    with pytest.raises(ConfigError, match=r"model\.x nests more than"):
        parse_override(f"model.x={text}")


def test_depth_that_is_legal():
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    check_nesting(parse_yaml(text), name="it")
    with pytest.raises(ConfigError, match="too deep"):
        parse_yaml(f"[{text}]")
    with pytest.raises(ConfigError, match="too deep"):
        check_nesting([parse_yaml(text)], name="it")
    # Many brackets beside one another are looked at and pass.
    assert len(parse_yaml(f"[{'[[]], ' * 1000}]")) == 1000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1:" + "0:" * 300_000 + "0", "a number of 600,003 characters"),
        ("1:" + "0:" * 300 + "0.5", "a number of 605 characters"),
        ("0x" + "f" * 100_000, "a number of 100,002 characters"),
        ("!!bool 7", "KeyError"),
        ("!!timestamp x", "AttributeError"),
        ("!!int x", "ValueError"),
        ("- \n" * (MAX_NODES + 1), "expands to more than"),
        ("&a {*a : 1}", "expands to more than"),
    ],
)
def test_values_that_are_refused(text, says):
    with pytest.raises(ConfigError, match=says):
        parse_yaml(text)


def test_deep_and_circular_data_of_python():
    deep: object = 1
    for _ in range(LONG):
        deep = {"a": deep}
    circle: dict[str, object] = {}
    circle["model"] = circle
    fan: object = 1
    for _ in range(40):
        fan = [fan, fan]
    for data in (deep, circle, {"a": fan}):
        for read in (pj.load_job, pj.load_space, load_model):
            with pytest.raises(ConfigError, match=r"too deep|too many"):
                read(data)
        with pytest.raises(ConfigError, match=r"too deep|too many"):
            pj.load_job({}, overrides={"model.name": data})
    # Taking it apart would recurse as well.
    while isinstance(deep, dict):
        deep = deep.popitem()[1]


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, LONG])
def test_deep_json(tmp_path, depth):
    path = tmp_path / "config.json"
    path.write_text('{"a":' * depth + "1" + "}" * depth)
    with pytest.raises(ConfigError, match="too deep"):
        read_json(path)


def test_a_circle_of_files_is_named(tmp_path):
    (tmp_path / "a.yaml").write_text("name: a\nextends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("name: b\nextends: a.yaml\n")
    path = tmp_path / "a.yaml"
    for load in (load_model, load_device, load_node, first_order_device):
        with pytest.raises(ConfigError, match="'extends' goes in a circle: ") as caught:
            load(str(path))
        assert caught.value.message.endswith(f"{path} -> {tmp_path / 'b.yaml'} -> {path}")
        assert caught.value.key.endswith("extends")


def test_a_long_chain_of_files(tmp_path):
    for number in range(20):
        (tmp_path / f"{number}.yaml").write_text(f"extends: {number + 1}.yaml\n")
    for load in (load_model, load_device, load_node, first_order_device):
        with pytest.raises(ConfigError, match="goes over more than 8 steps"):
            load(str(tmp_path / "0.yaml"))


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/full", "/dev/null"])
def test_devices_are_no_files(tmp_path, path):
    if not Path(path).exists():
        pytest.skip("no such device here")
    says = "is a device, not a file"
    link, table = tmp_path / "link.yaml", tmp_path / "link.json"
    for name in (link, table):
        name.symlink_to(path)
    with pytest.raises(ConfigError, match=says):
        pj.load_job(path)
    for read in (pj.load_job, pj.load_space, load_model, load_device, load_node):
        with pytest.raises(ConfigError, match=says):
            read(str(link))
    for read in (pj.load_record, load_model, pj.load_trace):
        with pytest.raises(ConfigError, match=says) as caught:
            read(str(table))
        assert "not valid" not in caught.value.message


def test_pipes(tmp_path, monkeypatch):
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    monkeypatch.setattr("projector.files.PIPE_S", 0.05)
    with pytest.raises(ConfigError, match=r"cannot be read: nothing came out of it"):
        read_text(pipe)
    monkeypatch.setattr("projector.files.PIPE_S", 60.0)

    def write():
        with pipe.open("w") as stream:
            stream.write("a:\r\n")
            stream.flush()
            time.sleep(0.05)
            stream.write("  1\n")

    writer = threading.Thread(target=write)
    writer.start()
    assert read_text(pipe) == "a:\n  1\n"
    writer.join()


def test_a_file_of_the_kernel_that_says_nothing_is_not_waited_for(tmp_path, monkeypatch):
    # As /proc/kmsg: a regular file of no size, which says something later or never.
    quiet = tmp_path / "kmsg.yaml"
    os.mkfifo(quiet)
    monkeypatch.setattr("projector.files.stat.S_ISFIFO", lambda _: False)
    monkeypatch.setattr("projector.files.PIPE_S", 0.05)
    writer = os.open(quiet, os.O_RDWR)
    threading.Timer(5.0, os.close, [writer]).start()
    before = time.monotonic()
    with pytest.raises(ConfigError, match="nothing came out of it"):
        read_text(quiet)
    assert time.monotonic() - before < 4.0


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"a": 1}).encode())
    assert read_json(path) == {"a": 1}


def test_names_that_no_file_can_have(tmp_path):
    for name in ("x" * 300, "a\0b"):
        job = {"model": f"{name}.yaml", "cluster": {"device": "h100"}}
        primus = {"modules": {"pre_trainer": {"model": f"{name}.yaml", "overrides": {}}}}
        for number, data in enumerate((job, primus)):
            path = tmp_path / f"{number}.yaml"
            path.write_text(json.dumps(data))
            with pytest.raises(ConfigError):
                pj.load_job(path)


SHIPPED = [
    path
    for kind in ("hardware", "models")
    for path in sorted(resources.data_dir(kind).rglob("*.yaml"))
]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_files_say_what_pyyaml_reads(path):
    text = path.read_text()
    assert parse_yaml(text) == yaml.load(text, Loader=yaml.CSafeLoader)


@pytest.mark.parametrize(
    "text",
    [
        "", "7", "~", "[a, [b, {c: 1}]]", "{1: a, 1.5: b, ~: c, true: d}",
        "a: 017\nb: 0x1f\nc: 1:30",
        "a: !!str 7\nb: !!float 1\nc: .inf\nd: -.inf", "a: 2001-12-14\nb: !!binary aGk=",
        "a: !!set {x, y}\nb: !!omap [x: 1]", "a: &x {b: 1}\nc: {<<: *x, d: 2}\ne: *x",
        "a: &x [1]\nb: [*x, *x]", "=: 1", "a: yes\nb: off\nc: 'yes'\nd: |\n  text\n",
    ],
)  # fmt: skip
def test_odd_documents_say_what_pyyaml_reads(text):
    assert parse_yaml(text) == yaml.load(text, Loader=yaml.CSafeLoader)
