import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.trace import events as ev
from projector.trace.alignment import align
from projector.trace.read import load_trace
from projector.trace.rocprof import format_of, group_files, read_rocprof
from thoroughness import examples

KERNELS = """\
"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",\
"Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count",\
"Accum_VGPR_Count","SGPR_Count","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z",\
"Grid_Size_X","Grid_Size_Y","Grid_Size_Z"
"KERNEL_DISPATCH","Agent 2",7,1,11,1,4,"void gemm<float, 2>(float*)",21,5000001000,5000001500,0,0,\
8,0,16,64,2,1,1024,4,1
"KERNEL_DISPATCH","Agent 2",7,1,11,2,5,"copy.kd",22,5000002000,5000002000,0,0,8,0,16,256,1,1,512,1,1
"KERNEL_DISPATCH","Agent 3",8,2,11,3,4,"void gemm<float, 2>(float*)",23,5000001200,5000001900,0,0,\
8,0,16,64,2,1,1000,4,1
"""
CALLS = """\
"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"
"HIP_RUNTIME_API","hipLaunchKernel",9,11,21,5000000100,5000000300
"HIP_RUNTIME_API","hipExtModuleLaunchKernel",9,11,22,5000000400,5000000450
"HSA_CORE_API","hsa_signal_store_screlease",9,11,24,5000000410,5000000420
"""
MARKERS = """\
"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"
"MARKER_CORE_API","ProfilerStep#3",9,11,30,5000000000,5000002500
"""
COPIES = """\
"Kind","Direction","Stream_Id","Source_Agent_Id","Destination_Agent_Id","Correlation_Id",\
"Start_Timestamp","End_Timestamp"
"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",1,"Agent 0","Agent 2",25,5000000600,5000000900
"MEMORY_COPY","MEMORY_COPY_DEVICE_TO_HOST",1,"Agent 3","Agent 0",26,5000002100,5000002200
"""


def written(folder, **files):
    paths = []
    for name, text in files.items():
        path = folder / f"{name}.csv"
        path.write_text(text)
        paths.append(path)
    return paths


def plainly(trace):
    events = trace.events
    return [
        (
            ev.KINDS[events.kind[i]], trace.names[events.name[i]], int(events.start_ps[i]) // 1000,
            int(events.duration_ps[i]) // 1000, int(events.process[i]), int(events.thread[i]),
            int(events.correlation[i]),
        )
        for i in range(len(events))
    ]  # fmt: skip


def test_csvs_of_one_process_are_one_trace(tmp_path):
    paths = written(
        tmp_path,
        **{
            "9_kernel_trace": KERNELS, "9_hip_api_trace": CALLS, "9_marker_api_trace": MARKERS,
            "9_memory_copy_trace": COPIES, "12_kernel_trace": KERNELS,
        },
    )  # fmt: skip
    mine, other = group_files(paths)
    assert [len(mine), len(other)] == [4, 1]
    (trace,) = read_rocprof(mine)
    assert trace.format == "rocprofv3"
    assert trace.vendor == "AMD"
    assert trace.rank == -1
    assert trace.zero_ns == 5000000000
    assert not trace.problems
    assert dict(trace.skipped) == {"HSA_CORE_API": 1}
    assert plainly(trace) == [
        ("annotation", "ProfilerStep#3", 0, 2500, 9, 11, 30),
        ("launch", "hipLaunchKernel", 100, 200, 9, 11, 21),
        ("launch", "hipExtModuleLaunchKernel", 400, 50, 9, 11, 22),
        ("copy", "Memcpy HtoD", 600, 300, 2, 1, 25),
        ("kernel", "void gemm<float, 2>(float*)", 1000, 500, 2, 1, 21),
        ("kernel", "void gemm<float, 2>(float*)", 1200, 700, 3, 2, 23),
        ("kernel", "copy", 2000, 0, 2, 1, 22),
        ("copy", "Memcpy DtoH", 2100, 100, 3, 1, 26),
    ]


def test_grids_are_counted_in_groups(tmp_path):
    (path,) = written(tmp_path, kernel_trace=KERNELS)
    (trace,) = read_rocprof([path])
    details = [trace.details[row] for row in trace.events.detail]
    assert details[0] == {"grid": (16, 2, 1), "block": (64, 2, 1)}
    # 1,000 items in groups of 64 are 16 groups, the last part filled.
    assert details[1] == details[0]
    assert details[2] == {"grid": (2, 1, 1), "block": (256, 1, 1)}


def test_a_broken_row_is_told_of_with_its_line(tmp_path):
    lines = KERNELS.splitlines(keepends=True)
    (path,) = written(tmp_path, kernel_trace=lines[0] + lines[1] + lines[2][:40] + "\n" + lines[3])
    (trace,) = read_rocprof([path])
    assert len(trace.events) == 2
    (problem,) = trace.problems
    assert problem.where == "line 3"
    assert "left out" in problem.text


def test_a_row_that_ends_before_it_starts_is_told_of(tmp_path):
    (path,) = written(tmp_path, kernel_trace=KERNELS.replace("5000001500", "5000000500"))
    (trace,) = read_rocprof([path])
    assert len(trace.events) == 2
    assert "end before they start" in trace.problems[0].text


def test_results_of_the_first_rocprof(tmp_path):
    text = """\
"Index","KernelName","gpu-id","queue-id","queue-index","pid","tid","grd","wgr","lds","scr",\
"arch_vgpr","accum_vgpr","sgpr","wave_size","sig","obj","DispatchNs","BeginNs","EndNs",\
"CompleteNs","DurationNs"
0,"bodyForce(Body*, float, int) [clone .kd]",0,0,0,36,36,65536,256,0,0,20,4,16,64,"0x0","0x7f",\
1591372809346673,1591372809872935,1591372836189584,1591372836215944,26316649
1,"other.kd",0,1,2,36,36,512,256,0,0,20,4,16,64,"0x0","0x7f",\
1591372836774261,1591372837000949,1591372863116796,1591372863132315,26115847
"""
    (path,) = written(tmp_path, results=text)
    (trace,) = read_rocprof([path])
    assert trace.format == "rocprof"
    kinds, names, _, durations, devices, _, _ = zip(*plainly(trace), strict=True)
    assert kinds == ("kernel", "kernel")
    assert names[1] == "other"
    assert durations == (26316649, 26115847)
    assert devices == (0, 0)
    assert trace.details[trace.events.detail[0]] == {"grid": (256, 1, 1), "block": (256, 1, 1)}


def dispatch(start, end, kernel, correlation, agent=900, grid=(1024, 4, 1), stream=1):
    def dim(sizes):
        return dict(zip("xyz", sizes, strict=True))

    return {
        "size": 152, "kind": 11, "operation": 0, "thread_id": 11,
        "correlation_id": {"internal": correlation, "external": 0},
        "start_timestamp": start, "end_timestamp": end,
        "dispatch_info": {
            "size": 64, "agent_id": {"handle": agent}, "queue_id": {"handle": 1 << 63},
            "kernel_id": kernel, "dispatch_id": correlation, "private_segment_size": 0,
            "group_segment_size": 0, "workgroup_size": dim((64, 2, 1)), "grid_size": dim(grid),
        },
        "stream_id": {"handle": stream},
    }  # fmt: skip


def call(kind, operation, start, end, correlation):
    return {
        "size": 56, "kind": kind, "operation": operation, "thread_id": 11,
        "correlation_id": {"internal": correlation, "external": 0},
        "start_timestamp": start, "end_timestamp": end,
    }  # fmt: skip


def document():
    kinds = [{"kind": f"KIND_{n}", "operations": ["NONE"]} for n in range(15)]
    kinds[5] = {"kind": "HIP_RUNTIME_API", "operations": ["hipMalloc", "hipLaunchKernel"]}
    kinds[7] = {"kind": "MARKER_CORE_API", "operations": ["roctxMarkA", "roctxRangePushA"]}
    kinds[12] = {
        "kind": "MEMORY_COPY",
        "operations": [
            "MEMORY_COPY_NONE",
            "MEMORY_COPY_HOST_TO_HOST",
            "MEMORY_COPY_HOST_TO_DEVICE",
        ],
    }
    copy = call(12, 2, 5000000600, 5000000900, 25)
    copy |= {"dst_agent_id": {"handle": 900}, "src_agent_id": {"handle": 800}, "bytes": 4096}
    copy |= {"stream_id": {"handle": 1}}
    process = {
        "metadata": {"pid": 9, "init_time": 1, "fini_time": 2, "command": ["python", "train.py"]},
        "agents": [
            {"id": {"handle": 800}, "type": 1, "node_id": 0, "logical_node_id": 0,
             "product_name": "AMD EPYC"},
            {"id": {"handle": 900}, "type": 2, "node_id": 4, "logical_node_id": 2,
             "product_name": "AMD Instinct MI300X"},
        ],
        "counters": [{"id": {"handle": 77}, "name": "SQ_WAVES"}],
        "strings": {
            "callback_records": [], "buffer_records": kinds,
            "marker_api": [{"key": 30, "value": "ProfilerStep#3"}],
        },
        "kernel_symbols": [
            {"kernel_id": 4, "formatted_kernel_name": "void gemm<float, 2>(float*)",
             "kernel_name": "_Z4gemm.kd"},
        ],
        "callback_records": {"counter_collection": []},
        "buffer_records": {
            "kernel_dispatch": [dispatch(5000001000, 5000001500, 4, 21)],
            "hip_api": [call(5, 1, 5000000100, 5000000300, 21)],
            "hsa_api": [],
            "marker_api": [call(7, 1, 5000000000, 5000002500, 30)],
            "memory_copy": [copy],
        },
    }  # fmt: skip
    return {"rocprofiler-sdk-tool": [process]}


def test_json_of_rocprofv3(tmp_path):
    pytest.importorskip("ijson")
    path = tmp_path / "9_results.json"
    path.write_text(json.dumps(document()))
    assert format_of(path) == "rocprofv3 json"
    (trace,) = read_rocprof([path])
    assert not trace.problems
    assert trace.devices == ("AMD Instinct MI300X",)
    assert plainly(trace) == [
        ("annotation", "ProfilerStep#3", 0, 2500, 0, 11, 30),
        ("launch", "hipLaunchKernel", 100, 200, 0, 11, 21),
        ("copy", "Memcpy HtoD", 600, 300, 2, 1, 25),
        ("kernel", "void gemm<float, 2>(float*)", 1000, 500, 2, 1, 21),
    ]
    assert trace.details[trace.events.detail[2]] == {"bytes": 4096}
    assert trace.details[trace.events.detail[3]] == {"grid": (16, 2, 1), "block": (64, 2, 1)}


def test_streams_that_were_not_asked_for_are_told_apart_by_queue(tmp_path):
    pytest.importorskip("ijson")
    path = tmp_path / "9_results.json"
    given_document = document()
    records = given_document["rocprofiler-sdk-tool"][0]["buffer_records"]
    records["kernel_dispatch"] = [dispatch(5000001000, 5000001500, 4, 21, stream=0)]
    path.write_text(json.dumps(given_document))
    (trace,) = read_rocprof([path])
    assert int(trace.events.thread[trace.events.kind == ev.KERNEL][0]) == -(1 << 63)


def test_processes_of_one_json_are_traces_of_their_own(tmp_path):
    pytest.importorskip("ijson")
    both = document()
    both["rocprofiler-sdk-tool"] *= 2
    path = tmp_path / "9_results.json.gz"
    with gzip.open(path, "wt") as stream:
        json.dump(both, stream)
    assert [len(trace.events) for trace in read_rocprof([path])] == [4, 4]


@settings(max_examples=examples(60))
@given(cut=st.floats(0.0, 1.0), junk=st.binary(max_size=4))
def test_a_cut_json_is_read_as_far_as_it_goes(tmp_path_factory, cut, junk):
    pytest.importorskip("ijson")
    path = tmp_path_factory.mktemp("cut") / "results.json"
    whole = json.dumps(document()).encode()
    path.write_bytes(whole[: int(cut * len(whole))] + junk)
    if format_of(path) != "rocprofv3 json":
        return
    (trace,) = read_rocprof([path])
    assert len(trace.events) <= 4
    if len(trace.events) < 4:
        assert trace.problems


def test_json_of_the_first_rocprof(tmp_path):
    def span(lane, thread, ts, name, **args):
        args = {key: str(value) for key, value in args.items()}
        return {"ph": "X", "name": name, "pid": lane, "tid": thread, "ts": str(ts), "dur": "1",
                "args": args}  # fmt: skip

    def label(pid, name):
        return {"args": {"name": name}, "ph": "M", "pid": pid, "name": "process_name"}

    events = [
        {},
        label(2, "CPU HIP API"), label(1, "COPY"), label(6, "GPU0"), label(3, "CPU HSA API"),
        span(2, 11, 100, "hipLaunchKernel", BeginNs=5000100000, EndNs=5000110000, pid=9, tid=11),
        span(3, 11, 101, "hsa_signal", BeginNs=5000101000, EndNs=5000102000, pid=9, tid=11),
        span(6, 1, 120, "gemm.kd", **{"BeginNs": 5000120500, "EndNs": 5000130250, "dev-id": 0,
             "queue-id": 0, "Name": "gemm.kd", "pid": 9, "tid": 11, "stream-id": 1}),
        {"ts": 100, "ph": "s", "cat": "DataFlow", "id": 0, "pid": 2, "tid": 11, "name": "dep"},
        {"ts": 120, "ph": "t", "cat": "DataFlow", "id": 0, "pid": 6, "tid": 1, "name": "dep"},
    ]  # fmt: skip
    path = tmp_path / "results.json"
    path.write_text('{ "traceEvents":[' + ",".join(map(json.dumps, events)) + "]}")
    assert format_of(path) == "rocprof json"
    (trace,) = read_rocprof([path])
    assert plainly(trace) == [
        ("launch", "hipLaunchKernel", 0, 10000, 9, 11, 1),
        ("kernel", "gemm", 20500, 9750, 0, 1, 1),
    ]
    assert dict(trace.skipped) == {"CPU HSA API": 1}


def test_other_files_are_of_no_such_format(tmp_path):
    statistics, counters = written(
        tmp_path,
        kernel_stats='"Name","Calls","TotalDurationNs"\n"gemm",3,100\n',
        counter_collection='"Dispatch_Id","Kernel_Name","Counter_Name","Counter_Value",'
        '"Start_Timestamp","End_Timestamp"\n',
    )
    assert format_of(statistics) == format_of(counters) == ""
    kineto = tmp_path / "trace.json"
    kineto.write_text('{"schemaVersion": 1, "traceEvents": []}')
    assert format_of(kineto) == ""
    assert format_of(tmp_path / "is_not_there.json") == ""


def test_a_table_longer_than_a_chunk_is_read_whole(tmp_path):
    header, row = KERNELS.splitlines()[:2]
    (path,) = written(tmp_path, kernel_trace="\n".join([header, *[row] * 66_000]) + "\n")
    (trace,) = read_rocprof([path])
    assert len(trace.events) == 66_000
    assert np.unique(trace.events.start_ps).tolist() == [0]


def test_a_folder_of_csvs_is_a_run(tmp_path):
    names = [f"rank{rank}_{what}" for rank in (0, 1) for what in ("kernel_trace", "hip_api_trace")]
    written(tmp_path, **dict(zip(names, [KERNELS, CALLS] * 2, strict=True)))
    written(tmp_path, rank0_kernel_stats='"Name","Calls","TotalDurationNs"\n"gemm",3,100\n')
    trace = load_trace(tmp_path)
    assert [rank.rank for rank in trace.ranks] == [0, 1]
    assert [len(rank.events) for rank in trace.ranks] == [5, 5]
    activities = align(trace)
    assert len(activities) == 6
    # The first of its device: launched at 100 ns, begun at 1,000 ns.
    first = activities.name.tolist().index(activities.names.index("void gemm<float, 2>(float*)"))
    assert activities.start_ps[first] - activities.launch_ps[first] == 900_000
