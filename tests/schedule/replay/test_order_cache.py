from projector.schedule.order import kept_by_operations


def test_results_are_kept_until_they_are_too_many():
    calls = []

    @kept_by_operations(lambda result, *_: result, most=10)
    def double(number):
        calls.append(number)
        return 2 * number

    assert [double(2), double(2), double(1), double(2)] == [4, 4, 2, 4]
    assert calls == [2, 1]
    # 4 + 2 + 6 are more than 10: the one that was not asked for longest goes.
    double(3)
    double(2)
    assert calls == [2, 1, 3]
    double(1)
    assert calls == [2, 1, 3, 1]
    # One that is larger than all room is kept alone.
    assert double(50) == double(50) == 100
    assert calls[-2:] == [1, 50]


def test_named_arguments_are_told_apart():
    @kept_by_operations(lambda result, *_, **__: 1)
    def pair(a, b=0):
        return (a, b)

    assert pair(1, b=2) is pair(1, b=2)
    assert pair(1, b=3) == (1, 3)
