"""Columns of a sweep whose jobs say how much they train."""

import numpy as np
import pytest

from projector import load_job, project_performance, sweep
from projector.errors import ConfigError
from projector.projection.run import RUN_SCALARS
from projector.sweeps.table import axis_kinds, column_kinds, results_of, states_run
from sweeps.grid import grid

RUN = [scalar.name for scalar in RUN_SCALARS]
AXES = {
    "parallelism.tp": [1, 2, 4],
    "run.tokens": [1e9, 1e12],
    "run.cost.usd_per_gpu_hour": [None, 2.0],
    "run.failures.enabled": [True, False],
    "run.energy.grid": ["world", 56],
}


def test_there_are_none_without_tokens():
    assert not set(RUN) & set(sweep(grid({"parallelism.tp": [1, 2]})).to_arrow().column_names)


@pytest.mark.parametrize("fixed", [{"run.tokens": 1e9}, {"run.steps": 10}, {"run.samples": 1000}])
def test_a_base_that_states_a_run_has_them(fixed):
    space = grid({"parallelism.tp": [1, 2]}, **fixed)
    table = sweep(space).to_arrow()
    assert table.column_names == [*column_kinds(axis_kinds(space), results_of(space))]
    assert table.column_names[-7:] == [*RUN, "status"]
    assert {str(table.schema.field(name).type) for name in RUN} == {"double"}
    assert table.column("cost_usd").null_count == len(table)
    assert table.column("days").null_count == 0


def test_rows_equal_projections_bit_for_bit():
    space = grid(AXES)
    assert states_run(space)
    table = sweep(space, workers=1).to_arrow().to_pylist()
    assert len(table) == space.size
    for point, row in enumerate(table):
        expected = project_performance(load_job(space.base, space.overrides(point)))
        run = expected.run.to_dict()
        assert {name: row[name] for name in RUN} == {name: run[name] for name in RUN}


def test_a_point_without_tokens_has_no_run():
    table = sweep(grid({"run.tokens": [None, 1e9]})).to_arrow()
    assert [value is None for value in table.column("days").to_pylist()] == [True, False]


def test_they_are_stored(tmp_path):
    space = grid({"parallelism.tp": [1, 2]}, **{"run.tokens": 1e9})
    stored = sweep(space, tmp_path / "rows").to_arrow()
    assert stored.equals(sweep(space).to_arrow())
    assert stored.column("energy_mwh").to_pylist()[0] > 0.0


def test_rows_do_not_depend_on_the_chunk():
    space = grid(AXES)
    few, one = (sweep(space, workers=workers).to_arrow() for workers in (1, 2))
    assert few.equals(one)


def test_front_of_days_and_dollars():
    axes = {"cluster.nodes": [1, 2, 4], "run.cost.usd_per_gpu_hour": [2.0]}
    result = sweep(grid(axes, **{"run.tokens": 1e12}), allow_risk=True)
    front = result.pareto(["days", "cost_usd"])
    days, cost = (front.column(name).to_numpy() for name in ("days", "cost_usd"))
    assert (np.diff(cost[np.argsort(days)]) <= 0.0).all()


def test_a_negative_price_costs_only_its_points():
    result = sweep(grid({"run.cost.usd_per_gpu_hour": [-1, 2]}, **{"run.tokens": 1e9}))
    assert result.rows == 1
    assert any("usd_per_gpu_hour" in reason for reason in result.infeasible)


def test_a_typing_error_is_refused():
    with pytest.raises(ConfigError, match="usd_per_gpu_hour"):
        grid({"run.cost.usd_per_gpu_hours": [1]})
