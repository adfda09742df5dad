"""``projector rl``."""

from projector.cli import output
from projector.cli.job import ASSIGNMENTS
from projector.cli.options import command, flag, option, refuse_idle
from projector.envelope import envelope


@command()
def rl(
    *,
    assignments: tuple[str, ...] = ASSIGNMENTS,
    config: str = option("FILE", "A step: training, rollout, responses.", required=True),
    search: bool = flag("Rank how --gpus devices are divided between training and rollout."),
    gpus: int | None = option("N", "Devices of a search; those of the file by default."),
    printer: output.Printer,
) -> int:
    """Project a step of reinforcement learning: rollout, log-probabilities, training, weights.

    A rollout is decode steps of serving over a batch that drains as short responses end; the rest
    are steps of training jobs. Both take turns on the same GPUs (placement=colocated), or have GPUs
    of their own (apart), in turn or one step off-policy (staleness=1). KEY=VALUE sets a field, for
    example rollout.tp=4 or training.cluster.nodes=2.

    With --search splits are ranked: colocated, and each number of nodes that trains while the
    others generate, with every split of a replica that the file leaves open.

    Exit code 3: the step does not fit; it is projected all the same. Or a search found nothing.

    \b
    Examples:
      projector rl --config examples/rl_llama8b_h100.yaml
      projector rl --config examples/rl_llama8b_h100.yaml responses.tokens.mean=1500
      projector rl --config examples/rl_llama8b_h100.yaml --search --gpus 32 staleness=1
    """  # noqa: D301  click looks for the backspace
    from projector.config.load import parse_override

    overrides = dict(parse_override(text) for text in assignments)
    if not search:
        refuse_idle("gpus", needs="--search")
    output.interpret_at_first(quiet=printer.quiet)
    from projector.report.rl import rl_report, rl_search_report
    from projector.rl.step import project_rl, search_rl

    if search:
        found = search_rl(config, gpus=gpus, overrides=overrides)
    else:
        found = [project_rl(config, overrides=overrides)]
    if printer.as_json:
        ranked = {"configurations": [each.to_dict() for each in found]} if search else {}
        output.print_json({**(found[0].to_dict() if found else envelope((), {})), **ranked})
    elif not found:
        printer.say("no split of the devices fits")
    else:
        output.print_report([rl_search_report(found) if search else rl_report(found[0])])
        printer.warn(found[0].update.warnings)
    return output.SUCCESS if found and found[0].fits else output.DOES_NOT_FIT
