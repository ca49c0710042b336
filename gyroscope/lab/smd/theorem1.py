"""Under SGD ‖w‖² closes in on sqrt(L·lr/(2·wd)) at a linear rate, down to a noise floor (SMD Theorem 1)."""

from dataclasses import dataclass

from plotly.graph_objects import Figure

from gyroscope.lab.bench import Bench
from gyroscope.lab.claim import Claim
from gyroscope.lab.experiment import Result
from gyroscope.lab.smd._approach import Approach, approach, judge, picture

COST = {"quick": "15 s", "paper": "5 min"}


@dataclass(frozen=True)
class Config(Approach):
    """Settings without momentum."""

    @classmethod
    def quick(cls) -> "Config":
        """A large decay, so that eight lifetimes 1/a are few steps."""
        return cls(momentum=0.0, weight_decay=0.01, vectors=100, fan_in=16, seeds=3)

    @classmethod
    def paper(cls) -> "Config":
        """A smaller decay, more vectors."""
        return cls(momentum=0.0, weight_decay=0.001, vectors=1000, fan_in=16, seeds=5)


def run(config: Config, bench: Bench) -> Result[Config]:
    """Let weights run into equilibrium from below and from above."""
    return bench.over_seeds(config, lambda seed: approach(config, seed, bench.steps(config.steps)))


def plot(result: Result[Config]) -> Figure:
    """The norm, and its mean square error under the bound."""
    return picture(result, "SGD: linear approach, and a noise floor far under its bound")


def claims(result: Result[Config]) -> list[Claim]:
    """Value, rates and noise floor."""
    return judge(result, "Theorem 1")
