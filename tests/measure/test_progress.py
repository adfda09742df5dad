"""What workers tell, and how little of it is passed on."""

import io

from projector.measure import task


def test_what_is_told_is_told_apart(monkeypatch):
    output = io.StringIO()
    monkeypatch.setattr("sys.stdout", output)
    task.tell("3 of 9: mlp.fc1 forward")
    output.write("a library says hello\n")
    found = [task.told(line) for line in output.getvalue().strip("\n").split("\n")]
    assert found == ["3 of 9: mlp.fc1 forward", None]


def test_short_things_are_not_told_and_long_ones_sparingly(monkeypatch):
    now, heard = [0.0], []
    monkeypatch.setattr(task.time, "monotonic", lambda: now[0])
    sparing = task.Sparing(heard.append, every_s=1.0)
    for tenth in range(36):
        now[0] = 0.1 * tenth
        sparing(f"at {tenth}")
    assert heard == ["at 10", "at 20", "at 30"]
