"""Most bad runs are told a change that lowers the loss, and hardly any good run is told one (ours).

Every situation of `_situations` trains on three networks with three seeds. Its findings are read, what they say is
applied to the letter, and the training is repeated, up to three rounds or until nothing new is named. Learning rates of
the tuned runs are chosen on a seed that judges nothing.

These rules were fixed before any run. A run is bad if it ends, in the mean over seeds, more than 0.05 nats above the
tuned run of the same optimizer, or 2 points of accuracy below it. Adam with L2 and the rotational optimizer are
compared with AdamW. A situation has a remedy if at least half of its seeds are told a change. The remedy lowers the
loss if the 95 % interval of the paired difference, last round minus first, is below 0, and raises it if the interval is
above 0.01 nats. Thresholds are chosen on the networks of the first half, and committed before the second half is run
once. Trimmed for an hour of one core: networks of at most 30 thousand weights, 200 steps, and three seeds.
"""

from dataclasses import dataclass
from pathlib import Path

from plotly.graph_objects import Figure

from gyroscope_lab.advice._outcomes import Outcome, outcomes, score
from gyroscope_lab.advice._rounds import ROUNDS, follow, settings_of, tuned
from gyroscope_lab.advice._situations import NETWORKS, SITUATIONS, situations_of
from gyroscope_lab.advice._table import write_table
from gyroscope_lab.advice._training import Bench
from gyroscope_lab.framework.claims import Claim, at_least, at_most
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, styled

CLAIMS = {
    "choosing": "On the networks that chose thresholds, most bad runs are told a change that lowers the loss",
    "judging": "On new networks, most bad runs are told a change that lowers the loss",
}
COST = {"choosing": {"quick": "15 min", "paper": "25 min"}, "judging": {"quick": "15 min", "paper": "25 min"}}
SEEDS = 3
# Folder of the finished trainings, and of their runs.
RESULTS = Path("results") / "advice"
RUNS = Path("runs") / "advice"


@dataclass(frozen=True)
class Config:
    """One half of the bench."""

    half: str
    seeds: int = SEEDS

    @property
    def parts(self) -> tuple[str, ...]:
        """Networks and situations, as network/situation."""
        return tuple(f"{network}/{name}" for network in NETWORKS[self.half] for name in situations_of(network))


QUICK = {name: Config(name) for name in CLAIMS}
PAPER = {name: Config(name, seeds=5) for name in CLAIMS}


def bench_of(half: str) -> Bench:
    """Return the stored results of one half."""
    return Bench.at(RESULTS / half, RUNS)


def measure(trial: Trial[Config]) -> Measurements:
    """Return loss and accuracy of the first and the last round, of the tuned run, and the number of changes."""
    network, name = str(trial.part).split("/")
    situation = SITUATIONS[name]
    half = trial.config.half
    bench = bench_of(half)
    settings = {**settings_of(bench, half, network, name), "seed": trial.seed}
    rounds = follow(bench, settings, situation.planted, trial.report)
    best = bench.loss({**tuned(bench, half, network, situation.compared_with), "seed": trial.seed})
    losses = [each.loss for each in rounds]
    return {
        "losses": losses + [losses[-1]] * (ROUNDS + 1 - len(losses)),
        "changes": float(len(rounds) - 1),
        "accuracy": rounds[0].accuracy,
        "tuned_loss": best["loss"],
        "tuned_accuracy": best["accuracy"],
    }


def plot(result: Result[Config]) -> Figure:
    """Draw the loss above that of the tuned run, before and after the remedy."""
    figure = Figure()
    judged = outcomes(result)
    above = {
        "before": [each.before - each.tuned for each in judged],
        "after": [each.after - each.tuned for each in judged],
    }
    for (name, x), colour in zip(above.items(), COLOURS, strict=False):
        figure.add_scatter(x=x, y=[each.part for each in judged], mode="markers", name=name, marker_color=colour)
    figure.update_xaxes(title_text="loss above the tuned run, in nats")
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(height=200 + 18 * len(judged), margin={"l": 300})
    return styled(figure, "Bad runs before and after what their findings say")


def claims(result: Result[Config]) -> list[Claim]:
    """Judge the goal: three in five bad runs are improved, no remedy does harm, one good run in twenty gets one."""
    judged: list[Outcome] = outcomes(result)
    counts = score(judged)
    bad = max(1, counts.improved + counts.useless + counts.silent + counts.harmed_bad)
    good = max(1, counts.good)
    return [
        at_least("share of bad situations with a remedy that lowers the loss", 0.6, [counts.improved / bad]),
        at_most("remedies that raise the loss by more than 0.01 nats", 0, [counts.harmed]),
        at_most("share of good situations with a remedy", 0.05, [counts.disturbed / good]),
    ]


def write_summary(out: Path) -> None:
    """Write the table of both halves."""
    write_table(out, {half: bench_of(half) for half in CLAIMS})
