"""Write a synthetic Kineto trace of a given size, and time how it is read.

``python validation/trace_of_size.py --megabytes 1000 trace.json`` writes; ``--read`` reads it back
and prints time, peak memory and rate. The events have the keys and the proportions of those of a
training run on an H100: operators with shapes, calls of the runtime, kernels, copies, arrows,
calls of Python.
"""

import argparse
import gzip
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

HOST, FORWARD, BACKWARD = 4242, 4242, 4300
BASE_NS = 1_767_189_312_000_000_000
FIRST_US = 4_458_676_522_690.655
GEMM = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8>"
    "(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8::Params)"
)
VECTOR = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul>)"
)
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
RANKS = "[" + ", ".join(map(str, range(8))) + "]"
HEAD = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": i, "name": "NVIDIA H100 80GB HBM3"} for i in range(8)],
    "cupti_version": 24,
    "distributedInfo": {
        "backend": "nccl",
        "rank": 0,
        "world_size": 8,
        "pg_count": 1,
        "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(8))}],
    },
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": BASE_NS,
}


def events() -> Iterator[dict[str, Any]]:
    """Yield events without end."""
    at, number = FIRST_US, 1
    step = 0
    while True:
        step += 1
        begun = at
        for layer in range(400):
            yield from _layer(at, number, layer)
            at += 310.271
            number += 8
        yield _span("user_annotation", f"ProfilerStep#{step}", HOST, begun, at - begun, {})


def _layer(at: float, number: int, layer: int) -> Iterator[dict[str, Any]]:
    shapes = {"Input Dims": [[8192, 4096], [4096, 1024 * (layer % 7 + 1)], []]}
    types = {"Input type": ["c10::BFloat16", "c10::BFloat16", ""]}
    yield _span(
        "python_function", f"model.py({layer}): forward", HOST, at, 280.25, {"Python id": number}
    )
    for place, name in enumerate(("aten::linear", "aten::matmul", "aten::mm", "aten::add_")):
        ids = {"External id": number + place, "Record function id": 0, "Ev Idx": number + place}
        yield _span("cpu_op", name, HOST, at + place, 150.125 - 10 * place, ids | shapes | types)
    for place, kernel in enumerate((GEMM, VECTOR)):
        yield from _launched(at + 20 + 30 * place, number + 2 + place, kernel)
    if layer % 8 == 0:
        group = {
            "Collective name": "allreduce",
            "In msg nelems": 8192 * 4096,
            "Out msg nelems": 8192 * 4096,
        }
        group |= {"Group size": 8, "dtype": "BFloat16", "Process Group Name": "0"}
        yield from _launched(at + 90, number + 5, NCCL, 20, group | {"Process Group Ranks": RANKS})
        moved = {"device": 0, "stream": 7, "correlation": number + 6, "bytes": 4096 * (layer + 1)}
        yield _span("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 0, at + 260, 3.072, moved, 7)


def _launched(
    at: float, number: int, name: str, stream: int = 7, more: dict[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    ids = {"External id": number, "cbid": 211, "correlation": number}
    yield _span("cuda_runtime", "cudaLaunchKernel", HOST, at, 6.417, ids)
    yield {
        "ph": "s",
        "id": number,
        "pid": HOST,
        "tid": HOST,
        "ts": round(at, 3),
        "cat": "ac2g",
        "name": "ac2g",
    }
    args = {"External id": number, "queued": 0, "device": 0, "context": 1, "stream": stream}
    args |= {"correlation": number, "registers per thread": 128, "shared memory": 98304}
    args |= {"blocks per SM": 1.939394, "warps per SM": 15.515152, "grid": [32, 8, 1]}
    args |= {"block": [256, 1, 1], "est. achieved occupancy %": 12} | (more or {})
    yield _span("kernel", name, 0, at + 40, 29.984, args, stream)
    yield {
        "ph": "f",
        "id": number,
        "pid": 0,
        "tid": stream,
        "ts": round(at + 40, 3),
        "cat": "ac2g",
        "name": "ac2g",
        "bp": "e",
    }


def _span(
    category: str,
    name: str,
    process: int,
    at: float,
    length: float,
    args: dict[str, Any],
    thread: int = HOST,
) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": process, "tid": thread,
        "ts": round(at, 3), "dur": round(length, 3), "args": args,
    }  # fmt: skip


def write(path: Path, size_bytes: int) -> int:
    """Write a trace of about this size and return its events."""
    packed = path.suffix == ".gz"
    count = 0
    with gzip.open(path, "wt", compresslevel=1) if packed else path.open("w") as opened:
        file = cast("TextIO", opened)
        written = file.write(json.dumps(HEAD, indent=2)[:-2] + ',\n  "traceEvents": [\n')
        for event in events():
            if written >= size_bytes:
                break
            text = json.dumps(event, indent=2).replace("\n", "\n  ")
            written += file.write((",\n  " if count else "  ") + text)
            count += 1
        file.write('\n  ],\n  "traceName": "synthetic"\n}\n')
    return count


def read(path: Path) -> None:
    """Read a trace, and print how long that takes and how much memory."""
    from projector.trace.read import load_trace

    calls = []
    begun = time.perf_counter()
    trace = load_trace(path, progress=lambda *done: calls.append(done))
    seconds = time.perf_counter() - begun
    rank = trace.ranks[0]
    peak = [resource.getrusage(who).ru_maxrss / 2**20 for who in _WHO]
    print(f"{path.stat().st_size / 1e6:,.0f} MB in {seconds:.1f} s, {calls[-1][2]:,} events")
    print(f"{len(rank.events):,} kept, {len(rank.names):,} names, {len(rank.details):,} details")
    spent = sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, _WHO))
    print(f"{spent:.1f} s of processor time, of this process and its children")
    print(f"peak of this process {peak[0]:.2f} GiB, of its largest child {peak[1]:.2f} GiB")
    print(f"progress told {len(calls)} times; problems: {trace.problems}")


_WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def main() -> None:
    """Write or read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--read", action="store_true")
    given = parser.parse_args()
    if given.read:
        read(given.path)
    else:
        print(f"{write(given.path, given.megabytes * 10**6):,} events")


if __name__ == "__main__":
    main()
