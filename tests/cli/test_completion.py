import pytest

from projector.cli import main
from projector.cli.completion import complete
from projector.cli.main import COMMANDS, cli


def completed(monkeypatch, capsys, *words):
    """Return what a shell is offered for the last of some words."""
    monkeypatch.setenv(main.COMPLETING, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        cli.main([], prog_name="projector", standalone_mode=False)
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("projector sens", "plain,sensitivity"),
        ("projector memory --gpu-a", "plain,--gpu-arch"),
        ("projector memory --gpu-arch mi35", "plain,mi355x"),
        ("projector plan --model llama3.1_7", "plain,llama3.1_70b"),
        ("projector models deepseek_v3", "plain,deepseek_v3"),
        ("projector hardware h20", "plain,h200"),
        ("projector search --pipeline-schedule-algorithm dual", "plain,dualpipe"),
        ("projector search --objective en", "plain,energy"),
        ("projector memory --config ex", "file,ex"),
        ("projector memory --gpu-arch ./my", "file,./my"),
        ("projector sweep sp", "file,sp"),
        ("projector topology plot mi300x --out fi", "file,fi"),
        ("projector trace summary tr", "file,tr"),
    ],
)
def test_a_shell_completes(words, offered, monkeypatch, capsys):
    assert offered in completed(monkeypatch, capsys, *words.split())


def test_choices_are_offered_once(monkeypatch, capsys):
    words = ("projector", "search", "--pipeline-schedule-algorithm", "a")
    assert completed(monkeypatch, capsys, *words) == ["plain,auto", "plain,all"]


def test_every_command_can_be_completed():
    for name in COMMANDS:
        command = cli.get_command(None, name)
        assert complete(command) is command
