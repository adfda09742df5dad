"""Ask AIConfigurator for the points of `aiconfigurator.py`; runs in a Python that has the package.

Reads a JSON list of points from standard input, writes a list of as many results or errors.
"""

import functools
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import yaml

# The package parses the same notes of its database for each point.
yaml.safe_load = functools.partial(yaml.load, Loader=yaml.CSafeLoader)

from aiconfigurator.cli.api import cli_estimate  # noqa: E402

SHOWN = ("ttft", "tpot", "request_latency", "tokens/s/gpu", "seq/s/gpu", "concurrency")

BATCHES = sorted({2**power for power in range(12)} | {3 * 2**power for power in range(10)})
"""Tried for the most throughput: powers of two and the middles between them, to 2,048 and 1,536."""

BELOW = 3
"""Largest batches that fit, of which the best counts."""

PROMPTS = (1024, 2048, 4096, 8192)
"""Tokens of prompts in a step that are tried with each batch, beside one prompt whole."""


def main() -> None:
    """Answer every point."""
    logging.disable(logging.CRITICAL)
    json.dump([_answer(point) for point in json.load(sys.stdin)], sys.stdout)


def _answer(point: dict[str, Any]) -> dict[str, Any]:
    limit = point.pop("most", None)
    try:
        if limit is None:
            return _estimate(point)
        return max(_largest(point, **limit), key=lambda found: found["tokens/s/gpu"])
    except Exception as error:  # Any refusal of the package is an answer.
        return {"error": f"{type(error).__name__}: {error}"}


def _largest(point: dict[str, Any], batch: int, tokens: int) -> Iterator[dict[str, Any]]:
    """Yield results of the largest batches that fit."""
    fitting, error = 0, RuntimeError("no batch fits")
    for each in reversed([size for size in BATCHES if size <= batch]):
        is_fitting = False
        for prompt in sorted({point["isl"], *(size for size in PROMPTS if size <= tokens)}):
            try:
                found = _estimate({**point, "batch_size": each, "ctx_tokens": prompt})
            except RuntimeError as told:
                error = told
                break
            if found["queues"]:
                break  # More tokens of prompts fit no better.
            is_fitting = True
            yield found
        fitting += is_fitting
        if fitting == BELOW:
            return
    if not fitting:
        raise error


def _estimate(point: dict[str, Any]) -> dict[str, Any]:
    found = cli_estimate(**point)
    shown = {name: float(found.raw[name]) for name in SHOWN if name in found.raw}
    return {**shown, "queues": found.kv_cache_warning is not None, "release": found.backend_version}


if __name__ == "__main__":
    main()
