"""The stories of the docs, command by command."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "stories.md"
_, *STORIES = PAGE.read_text(encoding="utf-8").split("\n## ")


@pytest.mark.rotated
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.splitlines()[0])
def test_a_story_runs_as_it_stands(story, tmp_path):
    """In one shell, in an empty folder; each command ends with success."""
    blocks = re.findall(r"```sh\n(.*?)```", story, re.DOTALL)
    command = f"'{sys.executable}' -c 'from projector.cli.main import main; main()'"
    script = f'set -e\nprojector() {{ {command} "$@"; }}\n' + "".join(blocks)
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("PRIMUS_")}
    run = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr + run.stdout[-2000:]
    assert "Traceback" not in run.stderr
    files = {path.name for path in tmp_path.iterdir()}
    told = set(re.findall(r"(?:--output|--out|--html|=)[ ]?([\w.]+\.(?:png|sh|html|yaml))", script))
    assert told <= files
