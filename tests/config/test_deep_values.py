"""Values that nest deeper than Python walks stand in errors by their kind."""

from projector.errors import ConfigError, shown


def test_a_value_that_nests_too_deeply_is_told_by_its_kind():
    deep = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert shown(deep) == "a dict nested too deeply"
    assert ConfigError("wrong", key="a", value=deep).to_dict()["value"] == shown(deep)
