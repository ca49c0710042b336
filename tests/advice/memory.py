"""A record in memory, made of arrays."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from gyroscope.theory import AdamW

QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95, "min": 0.0, "max": 1.0}


@dataclass
class Memory:
    """Series by layer and quantity: (samples,), or (samples, vectors) of which statistics are taken."""

    steps: np.ndarray
    data: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    fan_in: int = 64
    vectors: int = 32
    config: dict = field(default_factory=dict)
    notes: list = field(default_factory=list)
    status: str = "finished"

    @property
    def layers(self):
        return list(self.data)

    @property
    def quantities(self):
        return {name: None for series in self.data.values() for name in series}

    def layer(self, name):
        shape = (self.vectors, self.fan_in)
        return SimpleNamespace(name=name, shape=shape, vectors=self.vectors, fan_in=self.fan_in, group=0)

    def series(self, layer, quantity, stat="mean"):
        values = self.data[layer].get(quantity, np.full(len(self.steps), np.nan))
        return values if values.ndim == 1 else np.array([_statistic(row, stat) for row in values])


def _statistic(row, stat):
    """Over the vectors that have a number; infinities are numbers to the store."""
    row = row[~np.isnan(row)]
    if not row.size:
        return np.nan
    with np.errstate(all="ignore"):
        if stat in QUANTILES:
            return np.quantile(row, QUANTILES[stat], method="nearest")
        return row.mean() if stat == "mean" else np.sqrt((row**2).mean())


def record(names=("a", "b", "c"), rule=None, steps=1000, every=10, lr=None, norm=1.0, speed=1.0, **more):
    """Layers in equilibrium with `rule`, of which the norm or the rotation may be so many times the prediction."""
    rule = rule or AdamW(1e-2, 0.5)
    at = np.arange(0, steps, every)
    rate = np.full(len(at), rule.lr) if lr is None else lr(at)
    equilibrium = rule.equilibrium(fan_in=64, unit_grad_norm=1.0)
    predicted_norm = equilibrium.norm * (rate / rule.lr) ** rule.norm_exponent
    predicted_angle = equilibrium.angular_update * (rate / rule.lr) ** 0.5
    noise = np.random.default_rng(0).chisquare(63, (len(at), 32)) ** 0.5 / 63**0.5
    with np.errstate(divide="ignore"):
        timescale = equilibrium.timescale * rule.lr / rate
    data = {}
    for name in names:
        data[name] = {
            "angular_update": predicted_angle[:, None] * np.reshape(speed, (-1, 1)) * noise,
            "norm": np.broadcast_to(predicted_norm * norm, at.shape).copy(),
            "predicted_angular_update": predicted_angle,
            "predicted_norm": predicted_norm,
            "predicted_timescale": timescale,
            "lr": rate,
            "weight_decay": np.full(len(at), rule.weight_decay),
            "dead_vectors": np.zeros(len(at)),
            "frozen_entries": np.zeros(len(at)),
            "entries": np.full(len(at), 64 * 32.0),
        }
        data[name] |= {key: np.array(value) for key, value in more.items()}
    settings = {"name": type(rule).__name__, **vars(rule)}
    return Memory(at, data, config={"groups": [{"optimizer": type(rule).__name__, "rule": settings}]})
