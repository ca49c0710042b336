"""Under SGD ‖w‖² follows sqrt(L·lr/(2·wd)) whatever shape L_t = ‖g̃‖² has, if it changes slowly (SMD Figure 4)."""

from dataclasses import dataclass

from plotly.graph_objects import Figure

from gyroscope.lab.bench import Bench
from gyroscope.lab.claim import Claim
from gyroscope.lab.experiment import Result
from gyroscope.lab.smd._shapes import Driven, follow, judge, picture

COST = {"quick": "15 s", "paper": "3 min"}


@dataclass(frozen=True)
class Config(Driven):
    """SMD's settings, without momentum."""

    @classmethod
    def quick(cls) -> "Config":
        """Five times the decay, to settle in a fifth of the steps."""
        return cls(momentum=0.0, weight_decay=0.005, start=4.5, steps=12_000, vectors=2, seeds=3)

    @classmethod
    def paper(cls) -> "Config":
        """The decay of the paper."""
        return cls(momentum=0.0, weight_decay=0.001, steps=100_000, vectors=4, seeds=5)


def run(config: Config, bench: Bench) -> Result[Config]:
    """Drive weights with torch's SGD through every shape of L_t."""
    return bench.over_seeds(config, lambda seed: follow(config, seed, bench.steps(config.steps)))


def plot(result: Result[Config]) -> Figure:
    """L_t, the measured ‖w‖² and its prediction, shape by shape."""
    return picture(result, "SGD: ‖w‖² follows its equilibrium, whatever L_t does")


def claims(result: Result[Config]) -> list[Claim]:
    """The norm is as predicted for the L of the moment."""
    return judge(result)
