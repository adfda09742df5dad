"""Options are declared once; those that would have no effect are refused."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
import pytest
import yaml

from projector.cli.main import run
from projector.cli.options import argument, command, flag, group, option

EXAMPLES = Path(__file__).parents[2] / "examples"
MIXTRAL = str(EXAMPLES / "mixtral_8x22b_mi355x.yaml")
SENSITIVITY = f"sensitivity --config {MIXTRAL} --field hbm_peak_tb_per_s"
TRANSFER = "topology transfer mi300x --from 0 --to 1 --to 2"


@pytest.mark.parametrize(
    ("command", "key", "needs"),
    [
        (f"{SENSITIVITY} --samples 64", "samples", "--sobol"),
        (f"{SENSITIVITY} --seed 3", "seed", "--sobol"),
        (f"{SENSITIVITY} --range 3", "factor", "--sobol or --map"),
        (f"{SENSITIVITY} --weight 3", "weights", "several --config"),
        (f"sweep {EXAMPLES / 'space_schedules.yaml'} --overwrite", "overwrite", "--out PATH"),
        ("topology routes mi300x 0 1 --flow 0-1", "ends", "--flow"),
        ("topology routes mi300x 0 1 --route shortest", "route", "--flow"),
        (f"{TRANSFER} --bytes 1MiB", "size", "one --to"),
        (f"{TRANSFER} --accesses 2", "accesses", "one --to"),
        (f"{TRANSFER} --sweep", "sweep", "one --to"),
        (f"{TRANSFER} --route shortest", "route", "one --to"),
        ("calibrate gemm_measured none.csv --device h100 --force", "force", "--out"),
        ("probe --force", "force", "--out"),
    ],
)
def test_options_without_effect_are_refused(command, key, needs, capsys):
    assert run([*command.split(), "--json"]) == 2
    out, err = capsys.readouterr()
    error = json.loads(out)
    assert error["key"] == key
    assert needs in error["error"]
    assert "has no effect here" in err


def test_the_defaults_of_such_options_are_none_of_them(capsys):
    assert run(SENSITIVITY.split()) == 0
    assert run(TRANSFER.split()) == 0
    capsys.readouterr()


def test_all_schedules_are_compared_before_numbers_are_varied(tmp_path, capsys):
    job = {
        "model": "llama3.1_8b",
        "parallelism": {"pp": 4},
        "training": {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 4096},
        "cluster": {"device": "h100", "nodes": 1},
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    every = ["--config", str(path), "--json", "--pipeline-schedule-algorithm", "all"]
    assert run(["performance", *every]) == 0
    fastest = json.loads(capsys.readouterr().out)
    assert fastest["schedule"] != "1f1b"
    assert run(["sensitivity", *every, "--field", "hbm_peak_tb_per_s"]) == 0
    varied = json.loads(capsys.readouterr().out)
    assert varied["iteration_time_ms"] == fastest["iteration_time_ms"]


@dataclass(frozen=True, slots=True)
class Shape:
    rows: int = option("N", "Rows.", shown=4)
    kinds: tuple[str, ...] = option("NAME", "Kinds.", default=(), names="--kind")
    scale: float | None = option("X", "Scale.")
    dense: bool = flag("Whether it is dense.")


def called(arguments, **groups):
    """Return what a command gets that takes a shape, and its help."""
    taken = {}

    def shaped(
        *,
        place: str = argument("PLACE"),
        others: tuple[str, ...] = argument("[OTHER]..."),
        mode: Literal["fast", "exact"] = option(None, "Mode.", shown="fast"),
        shape: Shape = group(**groups),
    ) -> None:
        """Take a shape."""
        taken.update(place=place, others=others, mode=mode, shape=shape)

    made = command(more="More about it.")(shaped)
    assert made.name == "shaped"
    made.main([*arguments], standalone_mode=False)
    return taken, made.get_help(click.Context(made, info_name="shaped"))


def test_what_a_command_takes_is_told_by_its_parameters():
    words = "here there --rows 8 --kind a --kind b --scale 0.5 --dense --mode exact"
    taken, text = called(words.split())
    shape = Shape(rows=8, kinds=("a", "b"), scale=0.5, dense=True)
    assert taken == {"place": "here", "others": ("there",), "mode": "exact", "shape": shape}
    assert "Usage: shaped [OPTIONS] PLACE [OTHER]..." in text
    assert "Take a shape.\n\n  More about it." in text
    assert "--rows N             Rows.  [default: 4]" in text
    assert "--mode [fast|exact]  Mode.  [default: fast]" in text


def test_what_is_left_out_has_its_default():
    assert called(["here"])[0]["shape"] == Shape(4, (), None, dense=False)
    assert Shape() == Shape(4, (), None, dense=False)


@pytest.mark.parametrize("words", ["", "here --rows many", "here --mode slow", "here --shape 1"])
def test_what_is_not_declared_is_refused(words):
    with pytest.raises(click.UsageError):
        called(words.split())


def test_a_group_is_taken_in_part():
    instead = option("N", "Lines.", default=2)
    taken, text = called(["here"], without=("scale", "dense"), rows=instead)
    assert taken["shape"] == Shape(rows=2)
    assert "Lines." in text
    assert "Rows." not in text
    assert "--scale" not in text
    with pytest.raises(click.NoSuchOption):
        called(["here", "--dense"], without=("scale", "dense"))
