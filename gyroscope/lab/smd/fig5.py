"""Under SGD with momentum ‖w‖² follows the L of the moment too, 1/(1-α) times faster (SMD Figure 5)."""

from dataclasses import dataclass

from plotly.graph_objects import Figure

from gyroscope.lab.bench import Bench
from gyroscope.lab.claim import Claim
from gyroscope.lab.experiment import Result
from gyroscope.lab.smd._shapes import Driven, follow, judge, picture

COST = {"quick": "10 s", "paper": "30 s"}


@dataclass(frozen=True)
class Config(Driven):
    """SMD's settings, with momentum 0.9."""

    @classmethod
    def quick(cls) -> "Config":
        """Long enough for every plateau to settle."""
        return cls(momentum=0.9, weight_decay=0.001, steps=6_000, vectors=4, seeds=3)

    @classmethod
    def paper(cls) -> "Config":
        """Longer, with more vectors."""
        return cls(momentum=0.9, weight_decay=0.001, steps=40_000, vectors=8, seeds=5)


def run(config: Config, bench: Bench) -> Result[Config]:
    """Drive weights with torch's SGD with momentum through every shape of L_t."""
    return bench.over_seeds(config, lambda seed: follow(config, seed, bench.steps(config.steps)))


def plot(result: Result[Config]) -> Figure:
    """L_t, the measured ‖w‖² and its prediction, shape by shape."""
    return picture(result, "SGD with momentum 0.9: ‖w‖² follows its equilibrium ten times faster")


def claims(result: Result[Config]) -> list[Claim]:
    """The norm is as predicted for the L of the moment."""
    return judge(result)
