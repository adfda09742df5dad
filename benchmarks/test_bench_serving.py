import pytest

from projector.serving.deployment import Deployment
from projector.serving.load import Load, Scheduler
from projector.serving.simulation import longest_of, replica_of, serve_all

REQUESTS = 2000


@pytest.mark.parametrize(
    "arrival",
    [
        {"rate_per_s": 5.0},
        {"rate_per_s": 15.0},
        {"arrival": "closed", "concurrency": 64},
        {"arrival": "offline"},
    ],
    ids=["rate_5", "rate_15", "closed_64", "offline"],
)
def test_serve_requests(benchmark, arrival):
    """Requests that one thread serves in a second, with the table of steps at hand."""
    deployment = Deployment.parse({"model": "llama3_8b", "cluster": {"device": "h100"}})
    lengths = {"input_tokens": 1024, "output_tokens": 256, "requests": REQUESTS}
    load = Load.parse(lengths | arrival)
    drawn = load.draw()
    replica = replica_of(deployment, Scheduler(), longest_of(drawn))
    cases = [(replica, load, drawn)]
    serve_all(cases, 1)  # compile outside the clock

    benchmark(serve_all, cases, 1)
    if benchmark.stats is not None:
        benchmark.extra_info["requests_per_s"] = REQUESTS / benchmark.stats.stats.median


def test_table_of_steps(benchmark):
    """What a new deployment costs before its first request."""
    deployment = Deployment.parse({"model": "llama3.1_70b", "cluster": {"device": "h100"}, "tp": 8})
    benchmark(replica_of, deployment, Scheduler(), 8192)
