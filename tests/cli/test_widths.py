"""Every report at the widths people have: two narrow terminals, a wide one, and a pipe."""

import io
import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from projector.cli.main import COMMANDS as NAMES
from projector.cli.main import cli, run
from projector.report.document import Document
from projector.report.terminal import console
from projector.report.terminal.console import PIPED_WIDTH, render
from projector.report.terminal.grid import Grid, Pasted

EXAMPLES = Path(__file__).parents[2] / "examples"
MIXTRAL = EXAMPLES / "mixtral_8x22b_mi355x.yaml"
TOO_LARGE = EXAMPLES / "mixtral_8x22b_seed_sample.yaml"
LLAMA = EXAMPLES / "llama3.1_70b_fsdp_mi325x.yaml"
SMALL = "--model llama3.1_8b --device h100 --tp 1"

FIELDS = "--field cluster.device.hbm_peak_tb_per_s --field cluster.network.nic_gbit_per_s"

COMMANDS = {
    "memory": f"memory --config {MIXTRAL}",
    "performance": f"performance --config {MIXTRAL} run.tokens=1e12",
    "too_large": f"performance --config {TOO_LARGE}",
    "schedules": f"performance --config {MIXTRAL} --pipeline-schedule-algorithm all",
    "both": f"both --config {LLAMA}",
    "first_order": f"both --config {LLAMA} --fidelity first-order",
    "compare": f"compare {MIXTRAL} {TOO_LARGE}",
    "sensitivity": f"sensitivity --config {LLAMA} {FIELDS}",
    "several": f"sensitivity --config {LLAMA} --config {MIXTRAL} {FIELDS}",
    "search": f"search --config {LLAMA} --target-nodes 1 --top 3 --recompute full",
    "plan": "plan --model llama3.1_8b --tokens 1T --gpus 64 --device h100 --deadline-days 30 "
    "--fidelity first-order",
    "serve": f"serve {SMALL} --batch 16",
    "front": f"serve {SMALL} --output 512",
    "load": f"serve {SMALL} --output 256 --rate 20 --requests 50 --ttft-ms 500",
    "serve_first_order": f"serve {SMALL} --batch 16 --fidelity first-order",
    "schedule": f"schedule --config {MIXTRAL}",
    "numbers": "schedule --pp 4 --microbatches 16",
    "gemm": "gemm 4096 4096 8192 --gpu h100 --explain",
    "gemms": f"gemm --csv {EXAMPLES / 'gemms_deepseek_v3.csv'} --gpu mi300x",
    "attention": "attention 2 32 8192 --gpu mi300x --explain",
    "collective": "collective all_reduce --gpus 64 --sweep",
    "node": "topology show gb200_nvl72",
    "cluster": "topology show h100 --nodes 64",
    "matrix": "topology matrix mi250x",
    "many": "topology matrix gb200_nvl72",
    "routes": "topology routes mi250x",
    "transfer": "topology transfer mi300x --from 0 --to 1 --sweep",
    "models": "models",
    "model": "models deepseek_v3",
    "devices": "hardware",
    "device": "hardware mi355x --full",
    "datasheet": "hardware gb200",
    "dry_run": f"sweep {EXAMPLES / 'space_schedules.yaml'} --dry-run",
}


PIPE = None
WIDTHS = (60, 80, 120, PIPE)


@pytest.mark.rotated
@pytest.mark.parametrize("name", COMMANDS)
def test_no_report_cuts_a_number_or_a_head(name, monkeypatch):
    parts = report_of(COMMANDS[name], monkeypatch)
    monkeypatch.delenv("COLUMNS", raising=False)
    check_widths(parts, monkeypatch)


def test_the_summary_of_a_sweep_cuts_nothing(tmp_path, monkeypatch):
    space = {
        "base": str(LLAMA),
        "axes": {
            "cluster.nodes": [1, 2],
            "training.recompute.granularity": ["selective", "full"],
            "training.global_batch_size": [64, 128],
            "parallelism.overlap_param_gather": [True, False],
        },
    }
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(space))
    check_widths(report_of(f"sweep {path} --out {tmp_path / 'rows'}", monkeypatch), monkeypatch)


def opened(part):
    """Return the parts of a document, which stand for it on a terminal."""
    return console.parts_of(part) if isinstance(part, Document) else [part]


def check_widths(parts, monkeypatch):
    """Check a report at every width."""
    parts = [each for part in parts for each in opened(part)]
    tables = []
    lay_out = Grid.__rich_console__

    def noticed(table, *given):
        tables.append(table)
        return lay_out(table, *given)

    monkeypatch.setattr(Grid, "__rich_console__", noticed)
    copied = {each.text for each in parts if isinstance(each, Pasted)}
    for width in WIDTHS:
        tables.clear()
        text = render(*parts, file=io.StringIO(), width=width)
        assert tables
        assert "…" not in text
        for line in text.splitlines():
            assert len(line) <= (width or PIPED_WIDTH) or line.strip() in copied
        for table in tables:
            check_whole(table, text)


def check_whole(table, text):
    """Check that heads and numbers of a table stand in a text as a whole."""
    for column in table.columns:
        if column.kind != "bar":
            assert column.head in text
        if column.kind == "number":
            for cell in map(str, column.cells):
                assert re.search(rf"(?<!\S){re.escape(cell.strip())}(?!\S)", text), cell


def report_of(command, monkeypatch):
    """Return the parts of what a command prints."""
    parts = []
    with monkeypatch.context() as patch:
        patch.setattr(console, "render", lambda *found: parts.extend(found) or "")
        assert run(shlex.split(command)) in {0, 3}
    return parts


@pytest.mark.thorough
def test_a_terminal_and_a_pipe_have_widths_of_their_own(monkeypatch, capsys):
    longest = {}
    for columns in ("60", "120", None):
        if columns is None:
            monkeypatch.delenv("COLUMNS", raising=False)
        else:
            monkeypatch.setenv("COLUMNS", columns)
        assert run(["models", "deepseek_v3"]) == 0
        assert run(["hardware", "h100", "--full"]) == 0
        text = capsys.readouterr().out
        longest[columns] = max(map(len, text.splitlines()))
    assert longest["60"] <= 60 < longest[None] <= PIPED_WIDTH < longest["120"] <= 120


def helps(command, context):
    yield context.command_path, command.get_help(context)
    for name, below in getattr(command, "commands", {}).items():
        yield from helps(below, click.Context(below, parent=context, info_name=name))


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_the_help_paste_as_one_command_each(name):
    root = click.Context(cli, info_name="projector", terminal_width=60, max_content_width=60)
    command = cli.get_command(root, name)
    for _, text in helps(command, click.Context(command, parent=root, info_name=name)):
        _, found, examples = text.partition("Examples:\n")
        if found:
            block = examples.split("\n\n")[0].replace("\\\n", " ")
            assert all(line.split()[0] == "projector" for line in block.splitlines())
