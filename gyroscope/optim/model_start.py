"""How a model starts under a rotational optimizer: with learnable gains, and at other norms than its initial ones."""

import re
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from gyroscope._types import Array
from gyroscope.geometry import gathered
from gyroscope.model.selection import Decision, select
from gyroscope.nn import add_gain
from gyroscope.optim.equilibrium_init import to_equilibrium_
from gyroscope.optim.torch_rules import rule_of

# Where the norms of a fresh model start.
Start = Literal["initial", "equilibrium"]
# A weight behind a gain has another name than in a model without.
BEHIND_GAIN = re.compile(r"parametrizations\.(\w+)\.original$")


class NormRecord(Protocol):
    """The norms that a finished run has of its layers: a `gyroscope.store.Run`."""

    @property
    def layers(self) -> list[str]:
        """Names of the layers."""

    def layer(self, name: str) -> Any:
        """Return the description of a layer, with its number of `vectors`."""

    def series(self, layer: str, quantity: str, stat: str = "mean") -> Array:
        """Return a statistic over a layer's vectors at each sample."""


def add_gains(params: object, gain: bool, start: Start, start_from: NormRecord | None) -> None:
    """Add gains to a model if they are wanted. Raise for options of its start that contradict each other."""
    if start not in ("initial", "equilibrium"):
        raise ValueError(f"start={start!r} is unknown: choose 'initial' or 'equilibrium'")
    if start != "initial" and start_from is not None:
        raise ValueError(f"start={start!r} and start_from={start_from!r} are two starts: pass one of them")
    chosen = {"gain": gain, "start": start != "initial", "start_from": start_from is not None}
    given = [name for name, is_given in chosen.items() if is_given]
    if given and not isinstance(params, nn.Module):
        raise ValueError(
            f"{given[0]}=… changes the model, and the optimizer was given {type(params).__name__}: pass the model "
            "itself as the first argument, or call gyro.nn.add_gain and gyro.optim.to_equilibrium_ before training"
        )
    if gain:
        assert isinstance(params, nn.Module)
        add_gain(params)


def set_norms_(optimizer: Optimizer, params: object, start: Start, start_from: NormRecord | None) -> None:
    """Bring the weights that rotate to the norms of equilibrium, or to those at which a run ended."""
    if not isinstance(params, nn.Module):
        return
    if start == "equilibrium":
        _check_gradients_are_not_needed(optimizer)
        to_equilibrium_(params, optimizer)
    if start_from is not None:
        _to_norms_of_(params, optimizer, start_from)


def _check_gradients_are_not_needed(optimizer: Optimizer) -> None:
    needing = [group for group in optimizer.param_groups if "unit_grad_norm" in rule_of(group, optimizer).plain.needs]
    if needing:
        raise ValueError(
            f"start='equilibrium' with {type(optimizer).__name__}, whose norms of equilibrium depend on the gradients: "
            "call gyro.optim.to_equilibrium_(model, optimizer, loss=…) after the optimizer is made"
        )


@torch.no_grad()
def _to_norms_of_(model: nn.Module, optimizer: Optimizer, run: NormRecord) -> None:
    """Scale each weight that rotates to the RMS norm of its vectors at the end of a run."""
    weights = select(model, optimizer)
    ends = {weight.name: _last_norm(run, weight) for weight in weights}
    missing = [name for name, end in ends.items() if end is None]
    if missing:
        raise ValueError(
            f"start_from has no norm of {missing[0]!r}: it has {', '.join(run.layers[:5])}, …. Pass a run of the same "
            "model, opened with gyro.store.open_run(path)"
        )
    for weight in weights:
        norms = gathered(weight.split.norm(weight.parameter)).double()
        present = float(norms.square().mean().sqrt())
        end = ends[weight.name]
        if present > 0 and end is not None:
            weight.parameter.mul_(end / present)


def _last_norm(run: NormRecord, weight: Decision) -> float | None:
    """Return the last norm that a run has of a weight or of its fused parts."""
    name = BEHIND_GAIN.sub(r"\1", weight.name)
    parts = [layer for layer in run.layers if layer == name or layer.startswith(f"{name}[")]
    squares = [_last(run.series(part, "norm", "rms")) ** 2 for part in parts]
    counts = [run.layer(part).vectors for part in parts]
    mean = np.average(squares, weights=counts) if parts else np.nan
    return float(mean**0.5) if np.isfinite(mean) and mean > 0 else None


def _last(series: Array) -> float:
    known = series[np.isfinite(series)]
    return float(known[-1]) if len(known) else np.nan
