import csv
import json

import numpy as np
import pytest

from projector.errors import ConfigError
from projector.trace.counters import counter_files, read_counters

ROCPROFV3 = """\
"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size",\
"Kernel_Id","Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count",\
"Accum_VGPR_Count","SGPR_Count","Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"
2,2,"Agent 2",1,9,9,512,17,"copy(float*)",64,0,0,8,0,16,"SQ_WAVES",8.0,3000,3900
2,2,"Agent 2",1,9,9,512,17,"copy(float*)",64,0,0,8,0,16,"GRBM_GUI_ACTIVE",100.0,3000,3900
1,1,"Agent 2",1,9,9,1024,16,"void gemm<2>(float*).kd",64,0,0,8,0,16,"SQ_WAVES",16.0,1000,1500
1,1,"Agent 2",1,9,9,1024,16,"void gemm<2>(float*).kd",64,0,0,8,0,16,"SQ_WAVES",4.0,1000,1500
1,1,"Agent 3",1,9,9,1024,16,"void gemm<2>(float*).kd",64,0,0,8,0,16,"SQ_WAVES",7.0,1000,1800
"""


def of(folder, text, name="counters.csv"):
    path = folder / name
    path.write_text(text)
    return read_counters(path)


def test_counters_of_rocprofv3_are_put_together_by_dispatch(tmp_path):
    (counters,) = of(tmp_path, ROCPROFV3, "9_counter_collection.csv")
    assert counters.kernel == ["void gemm<2>(float*)", "copy(float*)", "void gemm<2>(float*)"]
    assert counters.device.tolist() == [2, 2, 3]
    assert counters.grid.tolist() == [1024, 512, 1024]
    assert counters.duration_ps.tolist() == [500_000, 900_000, 800_000]
    # Two rows of one dispatch are two instances of the counter.
    assert counters.values["SQ_WAVES"].tolist() == [20.0, 8.0, 7.0]
    np.testing.assert_array_equal(counters.values["GRBM_GUI_ACTIVE"], [np.nan, 100.0, np.nan])
    assert counters.rank == -1
    assert not counters.problems


def test_whole_values_are_read_as_those_with_decimals(tmp_path):
    (counters,) = of(tmp_path, ROCPROFV3.replace(".0,", ","))
    assert counters.values["SQ_WAVES"].tolist() == [20.0, 8.0, 7.0]


def test_many_broken_rows_are_told_of_together(tmp_path):
    (counters,) = of(tmp_path, ROCPROFV3 + "1,2\n" * 50)
    assert len(counters.problems) == 21
    assert "30 more rows" in counters.problems[-1].text
    assert len(counters.kernel) == 3


def test_a_name_of_any_length_is_read_and_the_limit_of_others_stays(tmp_path):
    limit = csv.field_size_limit()
    path = tmp_path / "9_counter_collection.csv"
    path.write_text(ROCPROFV3.replace("copy(float*)", "k" * 200_000))
    (found,) = read_counters(path)
    assert max(map(len, found.kernel)) == 200_000
    assert csv.field_size_limit() == limit


def test_pmc_perf_of_rocprofiler_compute(tmp_path):
    text = """\
Dispatch_ID,Kernel_Name,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,\
Scratch_Per_Workitem,Arch_VGPR,Accum_VGPR,SGPR,Wave_Size,Start_Timestamp,End_Timestamp,\
SQ_VALU_MFMA_BUSY_CYCLES,GRBM_GUI_ACTIVE,SQ_INSTS_VALU_MFMA_MOPS_BF16
1,"copy(float*)",0,1,9,9,512,64,0,0,8,0,16,64,3000,3900,0,50,0
0,"void gemm<2>(float*)",0,1,9,9,1024,64,0,0,8,0,16,64,1000,1500,800,100,4096
"""
    (counters,) = of(tmp_path, text, "pmc_perf.csv")
    assert counters.kernel == ["void gemm<2>(float*)", "copy(float*)"]
    assert set(counters.values) == {
        "SQ_VALU_MFMA_BUSY_CYCLES", "GRBM_GUI_ACTIVE", "SQ_INSTS_VALU_MFMA_MOPS_BF16",
    }  # fmt: skip
    assert counters.values["GRBM_GUI_ACTIVE"].tolist() == [100.0, 50.0]


def test_results_of_rocprof_with_counters(tmp_path):
    text = """\
Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,arch_vgpr,accum_vgpr,sgpr,\
wave_size,sig,obj,SQ_WAVES,GRBM_COUNT,DispatchNs,BeginNs,EndNs,CompleteNs,DurationNs
0,"gemm(float*) [clone .kd]",4,0,0,9,9,1024,64,0,0,8,0,16,64,0x0,0x7f,16,300,10,20,70,80,50
"""
    (counters,) = of(tmp_path, text)
    assert counters.device.tolist() == [4]
    assert {name: column.tolist() for name, column in counters.values.items()} == {
        "SQ_WAVES": [16.0], "GRBM_COUNT": [300.0],
    }  # fmt: skip


NCU_PREFIX = (
    '"{id}","9","python3.11","127.0.0.1","{kernel}","1","7","(256, 1, 1)","(108, 2, 1)","0","9.0"'
)
NCU_HEADING = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC"'
)


def test_details_page_of_nsight_compute(tmp_path):
    def row(dispatch, kernel, section, metric, unit, value):
        before = NCU_PREFIX.format(id=dispatch, kernel=kernel)
        return f'{before},"{section}","{metric}","{unit}","{value}"'

    lines = [
        "==PROF== Connected to process 9 (/usr/bin/python3.11)",
        '==PROF== Profiling "gemm" - 0: 0%....50%....100% - 3 passes',
        f'{NCU_HEADING},"Section Name","Metric Name","Metric Unit","Metric Value"',
        row(0, "gemm<2>(float *)", "Command line", "sm__cycles_elapsed.max", "cycle", "1,234,567"),
        row(0, "gemm<2>(float *)", "Command line", "gpu__time_duration.sum", "usecond", "850.50"),
        row(0, "gemm<2>(float *)", "Command line", "dram__bytes.sum", "Gbyte", "1.50"),
        row(0, "gemm<2>(float *)", "Memory", "dram__bytes.sum", "Gbyte", "1.50"),
        row(1, "copy(float *)", "Command line", "sm__cycles_elapsed.max", "cycle", "n/a"),
        row(1, "copy(float *)", "Command line", "dram__bytes.sum", "Kbyte", "12,5"),
        "==PROF== Disconnected from process 9",
    ]
    (counters,) = of(tmp_path, "\n".join(lines))
    assert counters.kernel == ["gemm<2>(float *)", "copy(float *)"]
    assert counters.grid.tolist() == [108 * 2 * 256] * 2
    assert counters.duration_ps.tolist() == [850_500_000, -1]
    np.testing.assert_array_equal(counters.values["sm__cycles_elapsed.max"], [1234567.0, np.nan])
    assert counters.values["dram__bytes.sum"].tolist() == [1.5e9, 12_500.0]
    assert not counters.problems


def test_raw_page_of_nsight_compute_has_a_row_of_units(tmp_path):
    lines = [
        f'{NCU_HEADING},"dram__bytes.sum","gpu__time_duration.sum","sm__cycles_elapsed.max"',
        '"","","","","","","","","","","","Mbyte","usecond","cycle"',
        NCU_PREFIX.format(id=0, kernel="gemm<2>(float *)") + ',"2.5","10.25","18,000"',
    ]
    (counters,) = of(tmp_path, "\n".join(lines))
    assert counters.kernel == ["gemm<2>(float *)"]
    assert counters.duration_ps.tolist() == [10_250_000]
    assert {name: column.tolist() for name, column in counters.values.items()} == {
        "dram__bytes.sum": [2.5e6],
        "gpu__time_duration.sum": [10_250.0],
        "sm__cycles_elapsed.max": [18_000.0],
    }


def test_json_of_rocprofv3_with_counters(tmp_path):
    pytest.importorskip("ijson")

    def record(dispatch, kernel, agent, grid, *pairs):
        sizes = {"grid_size": {"x": grid, "y": 1, "z": 1}}
        info = {
            "agent_id": {"handle": agent},
            "kernel_id": kernel,
            "dispatch_id": dispatch,
            **sizes,
        }
        return {
            "dispatch_data": {
                "start_timestamp": 1000 * dispatch, "end_timestamp": 1000 * dispatch + 250,
                "dispatch_info": info,
            },
            "records": [{"counter_id": {"handle": h}, "value": v} for h, v in pairs],
        }  # fmt: skip

    process = {
        "metadata": {"pid": 9},
        "agents": [{"id": {"handle": 900}, "type": 2, "logical_node_id": 2}],
        "counters": [{"id": {"handle": 70}, "name": "A"}, {"id": {"handle": 71}, "name": "B"}],
        "kernel_symbols": [{"kernel_id": 4, "formatted_kernel_name": "gemm(float*)"}],
        "callback_records": {
            "counter_collection": [
                record(2, 4, 900, 64, (70, 1.5)),
                record(1, 4, 900, 32, (70, 2.0), (70, 3), (71, 7)),
            ]
        },
        "buffer_records": {},
    }  # fmt: skip
    document = {"rocprofiler-sdk-tool": [process]}
    (counters,) = of(tmp_path, json.dumps(document), "rank5_results.json")
    assert counters.rank == 5
    assert counters.kernel == ["gemm(float*)"] * 2
    assert counters.grid.tolist() == [32, 64]
    assert counters.device.tolist() == [2, 2]
    assert counters.values["A"].tolist() == [5.0, 1.5]
    np.testing.assert_array_equal(counters.values["B"], [7.0, np.nan])


def test_a_folder_gives_its_files_of_counters(tmp_path):
    for part in ("pmc_1/9_counter_collection.csv", "pmc_2/9_counter_collection.csv"):
        (tmp_path / part).parent.mkdir()
        (tmp_path / part).write_text(ROCPROFV3)
    (tmp_path / "pmc_1/9_kernel_trace.csv").write_text(
        '"Kind","Agent_Id","Kernel_Name","Start_Timestamp","End_Timestamp"\n'
    )
    (tmp_path / "pmc_1/9_agent_info.csv").write_text('"Node_Id","Name"\n0,"gfx942"\n')
    files = counter_files([tmp_path])
    assert [str(file.relative_to(tmp_path)) for file in files] == [
        "pmc_1/9_counter_collection.csv", "pmc_2/9_counter_collection.csv",
    ]  # fmt: skip


def test_the_merged_file_of_a_folder_stands_for_its_passes(tmp_path):
    (tmp_path / "pmc_perf.csv").write_text(ROCPROFV3)
    (tmp_path / "results_pmc_perf_0.csv").write_text(ROCPROFV3)
    assert [file.name for file in counter_files([tmp_path])] == ["pmc_perf.csv"]


def test_what_is_no_file_of_counters_says_so(tmp_path):
    (counters,) = of(tmp_path, "a,b\n1,2\n")
    assert len(counters.kernel) == 0
    assert "nothing read" in counters.problems[-1].text
    with pytest.raises(ConfigError, match="does not exist") as caught:
        counter_files([tmp_path / "none.csv"])
    assert caught.value.key == "counters"
