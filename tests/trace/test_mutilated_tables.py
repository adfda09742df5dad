"""Files of profilers that were cut or hit by noise: read as far as may be, never a crash."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.errors import ConfigError
from projector.trace.counters import read_counters
from projector.trace.events import Problem
from projector.trace.rocprof import format_of, read_rocprof
from projector.trace.samples import read_samples
from test_counter_files import NCU_HEADING, NCU_PREFIX, ROCPROFV3
from test_rocprof import CALLS, COPIES, KERNELS, document
from test_sample_files import LSCPU, ZERO_NS, metric, mpstat, own
from thoroughness import examples

NCU = "\n".join(
    [
        "==PROF== Connected to process 9",
        f'{NCU_HEADING},"Section Name","Metric Name","Metric Unit","Metric Value"',
        NCU_PREFIX.format(id=0, kernel="gemm<2>(float *)") + ',"S","dram__bytes.sum","Gbyte","1.5"',
        NCU_PREFIX.format(id=1, kernel="copy(float *)") + ',"S","dram__bytes.sum","byte","7"',
    ]
)
SAMPLES = own(lines=[{"time_ns": ZERO_NS + n, "cpu_percent": [n, 1.0]} for n in range(3)])
SMI = "timestamp, index, power.draw [W]\n2025/12/31 13:55:13.250, 0, 350.25 W\n"
AMD_CSV = (
    f"timestamp,gpu,socket_power,gfx_0_clk,gfx_1_clk\n{ZERO_NS // 10**9},0,350,2100,N/A\n"
    f"{ZERO_NS}\ngpu,power_usage\n0,340\n"
)
AMD_JSON = f"{ZERO_NS}\n" + json.dumps([metric(0, 350, 2100), metric(1, 340, 2000)])
CORES = f"time_ns,cpu0,cpu1\n{ZERO_NS + 7},1,2\n{ZERO_NS + 9},5,6\n"

noise = st.sampled_from(
    [b"\x00", b"\xff\xfe", b'"', b",", b"\n", b"{", b"}", b"]", b"NaN", b"-1", b"1e999", b"null",
     b"99999999999999999999999", b"\xe2\x80\xaf", b";", b"[]", b'{"a":'],
)  # fmt: skip
wounds = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), noise), min_size=1, max_size=4)


def mutilated(text, wounds):
    data = text.encode()
    for place, lost, put in wounds:
        at = int(place * len(data))
        data = data[:at] + put + data[at + lost :]
    return data


def told(problems):
    assert all(isinstance(problem, Problem) and problem.text for problem in problems)


@pytest.mark.parametrize("text", [KERNELS, CALLS, COPIES], ids=["kernels", "calls", "copies"])
@settings(max_examples=examples(80))
@given(wounds=wounds)
def test_tables_of_traces(tmp_path_factory, text, wounds):
    path = tmp_path_factory.mktemp("t") / "9_kernel_trace.csv"
    path.write_bytes(mutilated(text, wounds))
    if format_of(path):
        (trace,) = read_rocprof([path])
        events = trace.events
        assert (events.duration_ps >= 0).all()
        assert (events.start_ps >= 0).all()
        assert (events.name < len(trace.names)).all()
        told(trace.problems)


@settings(max_examples=examples(150))
@given(wounds=wounds)
def test_json_of_rocprofv3(tmp_path_factory, wounds):
    pytest.importorskip("ijson")
    path = tmp_path_factory.mktemp("t") / "9_results.json"
    path.write_bytes(mutilated(json.dumps(document()), wounds))
    if format_of(path):
        for trace in read_rocprof([path]):
            assert (trace.events.duration_ps >= 0).all()
            told(trace.problems)
        for counters in read_counters(path):
            told(counters.problems)


@pytest.mark.parametrize("wrong", ["-1", "1.5", "99999999999999999999999", '"x"', '["x", 2]', "{}"])
@pytest.mark.parametrize("name", ["operations", "handle", "logical_node_id", "key", "kernel_id"])
def test_other_types_in_the_json_of_rocprofv3(tmp_path, name, wrong):
    pytest.importorskip("ijson")
    path = tmp_path / "9_results.json"
    text = re.sub(rf'("{name}": )(\[[^]]*\]|\d+)', rf"\g<1>{wrong}", json.dumps(document()))
    assert wrong in text
    path.write_text(text)
    for trace in read_rocprof([path]):
        told(trace.problems)
    for counters in read_counters(path):
        told(counters.problems)


@settings(max_examples=examples(100))
@given(wounds=wounds)
def test_json_of_the_first_rocprof(tmp_path_factory, wounds):
    span = {"ph": "X", "name": "k", "pid": 6, "tid": 1, "ts": "1", "dur": "1",
            "args": {"BeginNs": "1500", "EndNs": "2500", "dev-id": "0"}}  # fmt: skip
    label = {"args": {"name": "GPU0"}, "ph": "M", "pid": 6, "name": "process_name"}
    arrow = {"ts": 1, "ph": "t", "cat": "DataFlow", "id": 3, "pid": 6, "tid": 1}
    text = json.dumps({"traceEvents": [{}, label, span, arrow]})
    path = tmp_path_factory.mktemp("t") / "results.json"
    path.write_bytes(mutilated(text, wounds))
    if format_of(path):
        (trace,) = read_rocprof([path])
        told(trace.problems)


@pytest.mark.parametrize("text", [ROCPROFV3, NCU], ids=["rocprofv3", "ncu"])
@settings(max_examples=examples(80))
@given(wounds=wounds)
def test_tables_of_counters(tmp_path_factory, text, wounds):
    path = tmp_path_factory.mktemp("t") / "counters.csv"
    path.write_bytes(mutilated(text, wounds))
    for counters in read_counters(path):
        rows = len(counters.kernel)
        assert len(counters.device) == len(counters.grid) == len(counters.duration_ps) == rows
        assert all(len(column) == rows for column in counters.values.values())
        told(counters.problems)


@pytest.mark.parametrize(
    "text",
    [SAMPLES, mpstat(["13:55:13", "13:55:14"]), SMI, CORES, LSCPU, AMD_CSV, AMD_JSON],
    ids=["own", "mpstat", "smi", "cores", "lscpu", "amd", "amd-json"],
)
@settings(max_examples=examples(80))
@given(wounds=wounds)
def test_files_of_samples(tmp_path_factory, text, wounds):
    path = tmp_path_factory.mktemp("t") / "samples.jsonl"
    path.write_bytes(mutilated(text, wounds))
    # A file of which nothing is left is refused.
    found, refused = (), None
    try:
        found = read_samples([path], zero_ns=ZERO_NS, span_ns=10**9)
    except ConfigError as error:
        refused = error
    assert refused is None or (refused.key, refused.value) == ("samples", str(path))
    for samples in found:
        assert samples.values.shape == (len(samples.time_ps), len(samples.columns))
        told(samples.problems)
