"""Optimised zero-bubble schedules against a search that shares nothing with them."""

import builtins
import time

import numpy as np
import pytest

from projector.errors import ScheduleError
from projector.schedule import registry
from projector.schedule.order import BACKWARD, FORWARD, WEIGHT, Order, check_order
from projector.schedule.planning import bounds, ilp, optimise
from projector.schedule.planning import problem as problems
from projector.schedule.planning.costs import costs_from, uniform_costs
from reference import pipeline as pipelines
from reference import zero_bubble as reference


def as_order(texts, stage_of=None):
    """Order of arrays of one text of F, B and W for each rank."""
    each = len(texts[0])
    return Order(
        microbatches=each // 3,
        rank_offset=np.arange(len(texts) + 1) * each,
        kind=["FBW".index(letter) for text in texts for letter in text],
        chunk=np.zeros(len(texts) * each),
        microbatch=[text[:place].count(text[place]) for text in texts for place in range(each)],
        stage_of=np.arange(len(texts))[:, np.newaxis] if stage_of is None else stage_of,
        splits_backward=True,
    )


def greedy(costs, microbatches):
    """What can start first goes first, B before F before W, within the limits."""
    stages = len(costs.forward_ps)
    times = list(zip(costs.forward_ps, costs.backward_ps, costs.weight_ps, strict=True))
    texts = [""] * stages
    free = [0] * stages
    ends = {}
    for _ in range(3 * stages * microbatches):
        able = []
        for s, text in enumerate(texts):
            f, b, w = (text.count(letter) for letter in "FBW")
            each, limit = costs.activation[s], costs.limit[s]
            room = each * (f + 1 - b) + each * costs.w_share * (b - w) <= limit
            if f < microbatches and room and (s == 0 or ("F", s - 1, f) in ends):
                arrival = ends["F", s - 1, f] + costs.to_next_ps[s - 1] if s else 0
                able.append((max(free[s], arrival), 1, "F", s, f))
            if b < f and (s == stages - 1 or ("B", s + 1, b) in ends):
                arrival = (
                    0 if s == stages - 1 else ends["B", s + 1, b] + costs.to_previous_ps[s + 1]
                )
                able.append((max(free[s], arrival), 0, "B", s, b))
            if w < b:
                able.append((free[s], 2, "W", s, w))
        start, _, letter, s, m = min(able)
        texts[s] += letter
        free[s] = ends[letter, s, m] = start + times[s]["FBW".index(letter)]
    return as_order(texts)


def one_after_another(pp, microbatches):
    """List all operations, each microbatch after the one before: legal in any memory."""
    stages, sequence = range(pp), []
    for number in range(microbatches):
        sequence += [(stage, FORWARD, number) for stage in stages]
        sequence += [(stage, BACKWARD, number) for stage in reversed(stages)]
        sequence += [(stage, WEIGHT, number) for stage in stages]
    return sequence


def lower_bound_ps(costs, microbatches, objective="makespan"):
    problem = problems.problem_of(costs, microbatches, objective)
    return bounds.Windows(problem, one_after_another(problem.pp, microbatches)).lower_bound_ps()


def random_costs(random, pp, high=10, latency=None, w_share=None, limit=None, activation=1.0):
    """Whole times, with and without latencies, and limits from tight to loose."""
    if latency is None:
        latency = int(random.choice([0, high // 2]))
    if limit is None:
        limit = random.integers(1, 4, pp) + random.choice([0, 0.5])
    return costs_from(
        *random.integers(1, high, (3, pp)),
        random.integers(0, latency + 1, (2, pp)),
        np.full(pp, activation),
        random.choice([0.5, 1.0]) if w_share is None else w_share,
        np.broadcast_to(limit, pp) * activation,
    )


def as_reference(costs, microbatches):
    """Arguments of the reference for the same problem."""
    times = list(zip(costs.forward_ps, costs.backward_ps, costs.weight_ps, strict=True))
    return (
        microbatches,
        times,
        costs.to_next_ps,
        costs.to_previous_ps,
        costs.activation,
        costs.w_share,
        costs.limit,
    )


def texts_of(order):
    return ["".join(kind for kind, _, _ in tasks) for tasks in pipelines.tasks_of(order)]


def assert_stands(result, costs, microbatches):
    """The order is legal, fits, and has the objective that the result says."""
    order = result.order
    check_order(order)
    times = np.array([costs.forward_ps, costs.backward_ps, costs.weight_ps]).T
    spans = pipelines.simulate(
        pipelines.tasks_of(order),
        order.stage_of.tolist(),
        lambda rank, _chunk, kind, _m: int(times[order.stage_of[rank, 0], "FBW".index(kind)]),
        lambda source, target: (costs.to_next_ps, costs.to_previous_ps)[target < source][source],
        microbatches,
    )
    ranks = [[span for task, span in spans.items() if task[1] == s] for s in range(order.pp)]
    if result.objective == "period":
        value = max(max(e for _, e in rank) - min(s for s, _ in rank) for rank in ranks)
    else:
        value = max(e for rank in ranks for _, e in rank)
    assert result.objective_ps == value
    for rank, tasks in enumerate(pipelines.tasks_of(order)):
        size = [costs.activation[order.stage_of[rank, 0]]]
        assert pipelines.peak_bytes(tasks, size, True, costs.w_share) <= costs.limit[rank]
    assert result.bound_ps <= result.objective_ps <= result.start_ps
    assert 0 <= result.gap < 1
    assert result.seconds > 0


@pytest.mark.parametrize("seed", range(12))
def test_reference_search_matches_exhaustion(seed):
    random = np.random.default_rng(seed)
    pp, microbatches = [(2, 2), (2, 3), (3, 2)][seed % 3]
    arguments = as_reference(random_costs(random, pp), microbatches)
    assert reference.exhaustive(*arguments) == (
        reference.branch_and_bound(*arguments, "makespan"),
        reference.branch_and_bound(*arguments, "period"),
    )


@pytest.mark.rotated
@pytest.mark.parametrize("objective", ["makespan", "period"])
@pytest.mark.parametrize(("pp", "microbatches"), [(1, 3), (2, 2), (2, 3), (2, 4), (3, 2), (3, 3)])
def test_optimum_of_small_pipelines(pp, microbatches, objective):
    random = np.random.default_rng([pp, microbatches, len(objective)])
    solved = 0
    for _ in range(25):
        costs = random_costs(random, pp)
        start = greedy(costs, microbatches)
        result = optimise.solve(costs, microbatches, start, objective=objective)
        assert_stands(result, costs, microbatches)
        assert result.status in {"start is optimal", "optimal"}
        best = reference.branch_and_bound(*as_reference(costs, microbatches), objective)
        assert result.objective_ps == result.bound_ps == best
        assert result.gap == 0
        solved += result.status == "optimal"
    # One rank never idles, whatever it does first.
    assert solved or pp == 1


@pytest.mark.parametrize("w_share", [0.0, 0.3, 0.7, 1.0])
def test_optimum_with_a_part_until_w(w_share):
    # Activations that are no whole numbers, and a limit that one state meets exactly.
    random = np.random.default_rng(int(10 * w_share))
    for _ in range(10):
        costs = random_costs(random, 3, w_share=w_share, limit=2.0 + w_share, activation=0.1)
        result = optimise.solve(costs, 3, greedy(costs, 3))
        assert_stands(result, costs, 3)
        best = reference.branch_and_bound(*as_reference(costs, 3), "makespan")
        assert result.objective_ps == best


def test_optimum_of_times_that_share_no_unit():
    random = np.random.default_rng(7)
    searched = 0
    for _ in range(10):
        costs = random_costs(random, 3, high=10**10, limit=2)
        result = optimise.solve(costs, 4, greedy(costs, 4))
        assert_stands(result, costs, 4)
        best = reference.branch_and_bound(*as_reference(costs, 4), "makespan")
        assert result.bound_ps <= best == result.objective_ps
        # What the floats of the solver can prove.
        assert result.gap <= optimise.PROVEN
        searched += result.status == "optimal"
    assert searched


def test_operations_of_no_time():
    random = np.random.default_rng(3)
    for _ in range(10):
        costs = random_costs(random, 2, high=4)
        costs = costs._replace(backward_ps=(0, 2), weight_ps=(0, 0))
        result = optimise.solve(costs, 3, greedy(costs, 3))
        assert_stands(result, costs, 3)
        best = reference.branch_and_bound(*as_reference(costs, 3), "makespan")
        assert result.objective_ps == best
    nothing = uniform_costs(2, 2, ps=0)
    result = optimise.solve(nothing, 2, registry.build("zerobubble", 2, 1, 2))
    assert (result.objective_ps, result.gap, result.status) == (0, 0.0, "start is optimal")


def test_stages_stand_where_the_start_has_them():
    random = np.random.default_rng(5)
    for _ in range(10):
        costs = random_costs(random, 3, limit=[1, 2, 3])
        placement = np.array([[2], [0], [1]])
        # The ranks of the reference are stages.
        by_stage = costs._replace(limit=tuple(costs.limit[rank] for rank in (1, 2, 0)))
        texts = texts_of(greedy(by_stage, 3))
        start = as_order([texts[2], texts[0], texts[1]], placement)
        result = optimise.solve(costs, 3, start)
        assert_stands(result, costs, 3)
        assert result.order.stage_of.tolist() == placement.tolist()
        best = reference.branch_and_bound(*as_reference(by_stage, 3), "makespan")
        assert result.objective_ps == best


@pytest.mark.parametrize("objective", ["makespan", "period"])
def test_windows_hold_every_schedule(objective):
    random = np.random.default_rng(11)
    for _ in range(40):
        costs = random_costs(random, 2)
        arguments = as_reference(costs, 3)
        best = reference.branch_and_bound(*arguments, objective)
        assert lower_bound_ps(costs, 3, objective) <= best
        problem = problems.problem_of(costs, 3, objective)
        # Whatever is implied for a best schedule is so in every one that is as good.
        windows = bounds.Windows(problem, one_after_another(2, 3))
        assert windows.tighten(best)
        most = windows.most_before
        choices = [
            reference.interleavings(3, costs.activation[s], costs.w_share, costs.limit[s])
            for s in range(2)
        ]
        for texts in ((a, b) for a in choices[0] for b in choices[1]):
            values = reference.objectives(texts, *arguments[1:4])
            if values is None or values[objective == "period"] != best:
                continue
            for s, text in enumerate(texts):
                for place, letter in enumerate(text):
                    number, kind = text[:place].count(letter), "FBW".index(letter)
                    before = np.array([text[:place].count(other) for other in "FBW"])
                    assert np.all(windows.before[s, kind, number] <= before)
                    assert np.all(before <= most[s, kind, number])


def test_loose_memory_needs_no_solver(monkeypatch):
    monkeypatch.setattr(optimise, "run", None)
    costs = uniform_costs(8, 8, ps=1000)
    result = optimise.solve(costs, 32, registry.build("zerobubble", 8, 1, 32))
    assert result.status == "start is optimal"
    assert result.objective_ps == result.bound_ps == 1000 * (3 * 32 + 7)
    assert (result.nodes, result.binaries) == (0, 0)
    period = optimise.solve(
        costs, 32, registry.build("zerobubble-h2", 8, 1, 32), objective="period"
    )
    assert period.status == "start is optimal"
    assert period.objective_ps == 1000 * 3 * 32


def hard_case(pp=4, microbatches=6, limit=4):
    """A problem whose greedy order is known not to be the best."""
    random = np.random.default_rng(1)
    times = random.integers(60, 141, (3, pp))
    costs = costs_from(*times, np.full((2, pp), 5), np.ones(pp), 1.0, np.full(pp, float(limit)))
    return costs, greedy(costs, microbatches)


def test_the_solver_improves_and_proves():
    costs, start = hard_case()
    result = optimise.solve(costs, 6, start)
    assert_stands(result, costs, 6)
    assert result.status == "optimal"
    assert result.objective_ps == result.bound_ps < result.start_ps
    assert result.binaries > 0
    assert "optimal" in repr(result)
    # A report asks for the same again.
    assert optimise.solve(costs, 6, start) is result


def test_no_work_returns_the_start():
    costs, start = hard_case()
    result = optimise.solve(costs._replace(solver_work=0), 6, start)
    assert result.status == "too large"
    assert result.order is start
    assert result.objective_ps == result.start_ps > result.bound_ps > 0
    assert result.gap > 0


def test_the_solver_begins_with_the_start():
    costs, start = hard_case()
    problem = problems.problem_of(costs, 6, "makespan")
    timeline = problems.timeline_of(problem, start)
    start_ps = problems.objective_ps(problem, start, timeline)
    windows = bounds.Windows(problem, problems.sequence_of(start))
    assert windows.tighten(start_ps)
    model = ilp.Model(windows, start_ps)
    values = model.values(*optimise._by_operation(start, timeline.start_ps))
    for columns, coefficients, lower, upper in zip(
        model._columns, model._values, model._lower, model._upper, strict=True
    ):
        assert lower - 1e-9 <= values[columns] @ coefficients <= upper + 1e-9
    for order in optimise._orders(model, ilp.Answer(False, False, False, 0, 0, values), start):
        assert texts_of(order) == texts_of(start)
    # Before it has searched anything, the solver has that.
    answer = ilp.run(model, values, 0)
    assert not answer.finished
    assert not answer.failed
    assert answer.values[model.objective] * model.unit_ps == pytest.approx(start_ps)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (ilp.Answer(True, False, False, 10**9, 1, None), "not verified"),
        (ilp.Answer(True, False, False, 0, 1, None), "not verified"),
        (ilp.Answer(False, True, False, 0, 1, None), "solver failed"),
        (ilp.Answer(False, False, True, 0, 0, None), "solver failed"),
        (ilp.Answer(False, False, False, 0, 0, None), "work limit"),
    ],
)
def test_what_the_replay_denies_is_not_believed(monkeypatch, answer, status):
    costs, start = hard_case()
    honest = optimise.solve(costs._replace(solver_work=0), 6, start)
    monkeypatch.setattr(optimise, "run", lambda *_, **__: answer)
    result = optimise.solve.__wrapped__(costs, 6, start)
    assert result.status == status
    assert result.order is start
    assert honest.bound_ps <= result.bound_ps < result.start_ps


def test_a_proof_that_is_wrong_is_found_out(monkeypatch):
    costs, start = hard_case()
    best = optimise.solve(costs, 6, start).objective_ps
    honest = ilp.run

    def run(model, values, nodes, again=False):
        if again:
            return honest(model, values, nodes, again=True)
        return ilp.Answer(True, False, False, model.objective_ps, 1, values)

    monkeypatch.setattr(optimise, "run", run)
    result = optimise.solve.__wrapped__(costs, 6, start)
    assert (result.status, result.objective_ps) == ("optimal", best)
    assert result.bound_ps == best < result.start_ps

    def never(model, values, nodes, again=False):
        finished = not again
        return ilp.Answer(finished, False, False, finished * model.objective_ps, 1, values)

    monkeypatch.setattr(optimise, "run", never)
    assert optimise.solve.__wrapped__(costs, 6, start).status == "unconfirmed"


def test_a_solution_that_is_illegal_is_dropped(monkeypatch):
    costs, start = hard_case()

    def run(model, values, *_):
        # All F's first is beyond the limit, and everything at once says nothing of the order.
        values = values.copy()
        values[: model.starts] = np.broadcast_to([[[0.0], [1.0], [2.0]]], (4, 3, 6)).ravel()
        values[model.objective + 1 :] = 1.0
        return ilp.Answer(True, False, False, 0, 1, values)

    monkeypatch.setattr(optimise, "run", run)
    result = optimise.solve.__wrapped__(costs, 6, start)
    assert result.order is start
    assert result.status == "not verified"


def test_eight_ranks_and_32_microbatches():
    random = np.random.default_rng(2)
    times = random.integers(90, 111, (3, 8)) * 10**7
    for limit in (8, 12):
        costs = costs_from(
            *times, np.full((2, 8), 10**6), np.ones(8), 1.0, np.full(8, float(limit))
        )
        result = optimise.solve(costs, 32, greedy(costs, 32))
        assert_stands(result, costs, 32)
        assert result.gap < 0.2


@pytest.mark.thorough
def test_the_answer_does_not_depend_on_the_clock(monkeypatch):
    random = np.random.default_rng(2)
    times = random.integers(60, 141, (3, 4))
    costs = costs_from(*times, np.full((2, 4), 5), np.ones(4), 1.0, np.full(4, 4.0))
    start = greedy(costs, 8)
    statuses = set()
    for work in (10**5, 4 * 10**5, 10**6):
        limited = costs._replace(solver_work=work)
        first = optimise.solve.__wrapped__(limited, 8, start)
        with monkeypatch.context() as patch:
            # A machine that is ten thousand times slower.
            clock = time.perf_counter
            patch.setattr(time, "perf_counter", lambda clock=clock: 1e4 * clock())
            second = optimise.solve.__wrapped__(limited, 8, start)
        assert second.seconds > 100 * first.seconds
        for result in (first, second):
            assert_stands(result, limited, 8)
        assert texts_of(first.order) == texts_of(second.order)
        assert (first.status, first.bound_ps, first.nodes) == (
            second.status,
            second.bound_ps,
            second.nodes,
        )
        statuses.add(first.status)
    assert "work limit" in statuses


def test_a_start_that_runs_no_kind_by_microbatch():
    # Backwards on both ranks: legal, and renumbered it starts nothing later.
    costs = uniform_costs(2, 2, limit=2.0, ps=10)
    start = registry.build("zerobubble", 2, 1, 3)
    backwards = Order(
        3, start.rank_offset, start.kind, start.chunk, 2 - start.microbatch, start.stage_of, True
    )
    for order in (start, backwards):
        result = optimise.solve(costs._replace(solver_work=0), 3, order)
        assert_stands(result, costs, 3)
        assert result.objective_ps == 10 * (3 * 3 + 1)
    assert result.order.microbatch.tolist() == start.microbatch.tolist()


def test_a_bound_holds_at_any_time():
    random = np.random.default_rng(13)
    for _ in range(5):
        costs = random_costs(random, 3)
        problem = problems.problem_of(costs, 3, "makespan")
        best = reference.branch_and_bound(*as_reference(costs, 3), "makespan")
        windows = bounds.Windows(problem, one_after_another(3, 3), visits=0)
        assert windows.tighten(best)
        assert 0 <= windows.lower_bound_ps() <= best


def test_too_little_memory_names_what_works():
    costs = uniform_costs(2, 2, limit=3.0)._replace(activation=(2.0, 4.0))
    start = registry.build("zerobubble", 2, 1, 3)
    with pytest.raises(ScheduleError, match=r"rank 1 may hold 3.*takes 4.*least that works.* 4"):
        optimise.solve(costs, 3, start)
    with pytest.raises(ScheduleError, match="rank 1 may hold 3"):
        lower_bound_ps(costs, 3)
    # Room for one is enough for some order, but not for this one.
    costs = costs._replace(limit=(4.0, 4.0))
    with pytest.raises(ScheduleError, match="holds 8 on rank 1, which may hold at most 4"):
        optimise.solve(costs, 3, start)
    alone = as_order(["FBW" * 3] * 2)
    assert_stands(optimise.solve(costs, 3, alone), costs, 3)


def test_bad_arguments():
    costs = uniform_costs(2, 2, ps=10)
    start = registry.build("zerobubble", 2, 1, 3)
    for bad in (
        registry.build("1f1b", 2, 1, 3),
        registry.build("zerobubble", 3, 1, 3),
        registry.build("zerobubble", 2, 1, 4),
    ):
        with pytest.raises(ScheduleError, match="must be an order of F, B and W"):
            optimise.solve(costs, 3, bad)
    with pytest.raises(ScheduleError, match="objective must be one of makespan, period"):
        optimise.solve(costs, 3, start, objective="bubble")
    with pytest.raises(ScheduleError, match="solver_work must be a number >= 0, not -1"):
        optimise.solve(costs._replace(solver_work=-1), 3, start)
    with pytest.raises(ScheduleError, match="waits for ever"):
        optimise.solve(costs, 1, as_order(["FBW", "BFW"]))


def test_a_missing_solver_is_named(monkeypatch):
    costs, start = hard_case()
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "highspy":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ScheduleError, match=r"\.\[ilp\]"):
        optimise.solve.__wrapped__(costs, 6, start)
