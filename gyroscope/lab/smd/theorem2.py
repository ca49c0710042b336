"""Under SGD with momentum ‖w‖² closes in on w*² too, 1/(1-α) times faster (SMD Theorem 2)."""

from dataclasses import dataclass

from plotly.graph_objects import Figure

from gyroscope.lab.bench import Bench
from gyroscope.lab.claim import Claim
from gyroscope.lab.experiment import Result
from gyroscope.lab.smd._approach import Approach, approach, judge, picture

COST = {"quick": "20 s", "paper": "5 min"}


@dataclass(frozen=True)
class Config(Approach):
    """Settings with momentum 0.9."""

    @classmethod
    def quick(cls) -> "Config":
        """A large decay, so that eight lifetimes 1/a are few steps."""
        return cls(momentum=0.9, weight_decay=1e-3, vectors=16, fan_in=1024, seeds=3)

    @classmethod
    def paper(cls) -> "Config":
        """A smaller decay, more vectors."""
        return cls(momentum=0.9, weight_decay=2.5e-4, vectors=64, fan_in=2048, seeds=5)


def run(config: Config, bench: Bench) -> Result[Config]:
    """Let weights run into equilibrium from below and from above."""
    return bench.over_seeds(config, lambda seed: approach(config, seed, bench.steps(config.steps)))


def plot(result: Result[Config]) -> Figure:
    """The norm, and its mean square error under the bound."""
    return picture(result, "SGD with momentum 0.9: linear approach, and a noise floor far under its bound")


def claims(result: Result[Config]) -> list[Claim]:
    """Value, rates and noise floor."""
    return judge(result, "Theorem 2")
