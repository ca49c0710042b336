"""Measurement of weights, gradients and optimizer state before and after a step. It changes none of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from gyroscope._dtensor import cut_like, local
from gyroscope._json import clean_text
from gyroscope.measure._pipeline.host_copy import HostCopy, SentSums, send_to_host
from gyroscope.measure._pipeline.layer_step import LayerStep, SecondMoment
from gyroscope.measure._pipeline.layers import Layer, find_layers
from gyroscope.measure._pipeline.optimizers import LayerReading, rule_or_none
from gyroscope.measure._pipeline.settings_history import SettingsLog
from gyroscope.measure._pipeline.sums import sum_after, sum_before
from gyroscope.model.optimizer_list import Optimizers
from gyroscope.model.selection import Invariance
from gyroscope.optim.torch_rules import keeps_norms
from gyroscope.optimizers import MOMENTUM_KEYS, SECOND_MOMENT_KEYS


def rank() -> int:
    """Return the number of this process, 0 if there is only one."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


@final
class StepMeasurement:
    """Measures the watched layers around a step of the run, in which each optimizer takes one step."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Optimizers,
        layers: re.Pattern[str] | None = None,
        probe: Mapping[str, Invariance] | None = None,
        rows: int | None = None,
        parts: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.model = model
        self.optimizers = optimizers
        # By parameter and first vector, because fused weights are several layers.
        self.layers: dict[tuple[nn.Parameter, int], Layer] = {}
        self._selection = (layers, probe, rows, parts)
        self.changes: list[str] = []
        """Sentences about layers that changed their shape, to be noted in the run."""
        self._of: dict[Optimizer, list[Layer]] = {}
        self._names: dict[str, dict[Any, str]] = {}
        self._seen: list[Any] = []
        self._decoupled: list[bool] = []
        self._steps: list[LayerStep] = []
        self._rescaled = False
        self._scaler: Tensor | None = None
        self.settings = SettingsLog()
        self.scaler: HostCopy | None = None
        """Whether the last step was skipped, and the gradients' scale, with a GradScaler."""

    @property
    def sharded(self) -> bool:
        """Whether other processes have part of the measured parameters."""
        return any(layer.pieces.sharded for layer in self.layers.values())

    def agreed(self, step: int) -> int:
        """Return the number of the next step in process 0, because all processes must use the same one."""
        if not self.sharded:
            return step
        numbers = [step]
        dist.broadcast_object_list(numbers, src=0)
        return numbers[0]

    def refresh(self, step: int = 0) -> list[Layer]:
        """Find parameters that were added, removed or reshaped since the last call, and return the new ones."""
        # The shape is compared too, because pruning and growing methods replace the `.data` of a parameter.
        of_all = [group for member in self.optimizers.members for group in member.param_groups]
        seen = [(id(p), p.shape, p.dtype, p.device) for group in of_all for p in group["params"]]
        if seen == self._seen:
            return []
        groups = self.optimizers.groups()
        self._seen = seen
        selected = find_layers(self.model, self.optimizers, *self._selection)
        # Parameters that are not sharded are the same in all processes, so process 0 has them.
        selected = [self._named(layer, step) for layer in selected if layer.pieces.sharded or rank() == 0]
        old = {key: layer for key, layer in self.layers.items() if layer.shape == key[0].shape}
        self.layers = {(layer.parameter, layer.start): layer for layer in selected}
        # Remaining layers keep what they have of earlier samples.
        for key, layer in self.layers.items():
            if (before := old.get(key)) is not None:
                layer.copy = before.copy
                layer.initial_places = before.initial_places
                layer.initial = before.initial
        self._of = {member: [] for member in self.optimizers.members}
        for layer in selected:
            self._of[groups[layer.group].owner].append(layer)
        rules = [rule_or_none(*group, self.optimizers.rules) for group in groups]
        # If norms are fixed, weight decay moves no weight and only sets the angle.
        self._decoupled = [
            rule is not None and rule.is_decoupled and not keeps_norms(owner)
            for rule, (_, owner) in zip(rules, groups, strict=True)
        ]
        return [layer for key, layer in self.layers.items() if key not in old]

    def _named(self, layer: Layer, step: int) -> Layer:
        """Return the layer, renamed to weight@step if its name had vectors of another shape before.

        A run has one shape for each name, because numbers about other vectors do not continue a series.
        """
        plain = clean_text(layer.name)
        names = self._names.setdefault(plain, {})
        vectors = (layer.shape, layer.split, layer.rows)
        if names and vectors not in names:
            self.changes.append(
                f"{plain} has another shape, {list(layer.shape)}, from step {step} on. It is now layer {plain}@{step}."
            )
        return replace(layer, name=names.setdefault(vectors, f"{plain}@{step}" if names else plain))

    @torch.no_grad()
    @np.errstate(all="ignore")
    def before(self, optimizer: Optimizer, closure: bool) -> None:
        """Copy weights before an optimizer's step, and read gradients unless a closure will make them."""
        scaler = _scaler_state(optimizer)
        self._rescaled = scaler is not None
        if scaler is not None:
            # One scaler serves all optimizers. If any of them finds an inf, it counts for the step of the run.
            self._scaler = scaler if self._scaler is None else torch.maximum(self._scaler, scaler)
        self._steps = []
        for layer in self._of[optimizer]:
            p = layer.parameter
            if not closure and not _usable(p.grad):
                continue
            # `get`, since looking a parameter up in torch's defaultdict would make a state for it.
            m = _momentum(optimizer.state.get(p, {}), p)
            step = LayerStep(layer, None if closure else p.grad, had_momentum=m is not None)
            step.views = _views(layer, [p.detach(), step.grad, None if closure else m])
            sum_before(step)
            self._steps.append(step)

    @torch.no_grad()
    @np.errstate(all="ignore")
    def after(self, optimizer: Optimizer, sampled: bool, ends: bool) -> tuple[list[SentSums], dict[str, LayerReading]]:
        """Measure a step if `sampled`. Return the sums, which may still be copied, and how they were made.

        The settings of the groups are read now, before a scheduler changes them. `ends`: this is the last optimizer of
        the step of the run.
        """
        self.settings.read(self.optimizers.numbers[optimizer], optimizer, sampled, ends)
        if ends:
            self._send_scaler()
        if not sampled:
            return [], {}
        steps = [step for step in self._steps if self._read_after(step)]
        self._steps = []
        sent = send_to_host([(step.layer, sum_after(step)) for step in steps])
        return sent, {step.layer.name: step.reading for step in steps}

    def _read_after(self, step: LayerStep) -> bool:
        """Read the state after the step. Return False if the layer had no gradient or changed its shape in the step."""
        layer = step.layer
        p = layer.parameter
        step.late = step.grad is None
        # Otherwise the gradient from before the step, because another hook may have cleared p.grad since.
        step.grad = p.grad if step.late else step.grad
        if not _usable(step.grad) or p.shape != layer.shape:
            return False
        state = self.optimizers.owners[layer.group].state.get(p, {})
        group = self.settings.options[layer.group]
        step.rescaled = self._rescaled
        step.second = _second_moment(state, group, p, p.numel() // layer.fan_in)
        if self._decoupled[layer.group]:
            step.decay = group["lr"] * group.get("weight_decay", 0.0)
        m = _momentum(state, p) if step.late else None
        v = None if step.second is None else step.second.v
        step.views = _views(layer, [p.detach(), step.grad, m, v if v is not None and v.shape == p.shape else None])
        if v is not None and v.shape != p.shape:  # AdamS and the like keep one second moment for each vector
            weight = step.views[0]
            step.views[3] = layer.per_vector(v).reshape(-1, *[1] * (weight.dim() - 1)).expand_as(weight)
        return True

    def end_step(self) -> None:
        """End a step in which some of the optimizers take no part."""
        self.settings.end_step()
        self._send_scaler()

    def _send_scaler(self) -> None:
        self.scaler = None if self._scaler is None else HostCopy(self._scaler)
        self._scaler = None

    @torch.no_grad()
    @np.errstate(all="ignore")
    def at_end(self) -> tuple[list[SentSums], dict[str, LayerReading]]:
        """Measure the weights after the last step. No step moves them now, and their gradient is unknown."""
        tables = []
        reading = LayerReading(adam=False, late=False, had_momentum=False)
        for layer in self.layers.values():
            p = layer.parameter.detach()
            if p.shape == layer.shape:
                no_gradient = p.new_zeros(()).expand_as(p)
                step = LayerStep(layer, no_gradient, had_momentum=False)
                step.views = _views(layer, [p, no_gradient, None])
                sum_before(step)
                step.views.append(None)
                tables.append((layer, sum_after(step)))
        self.scaler = None
        return send_to_host(tables), {layer.name: reading for layer, _ in tables}

    def take_part(self, optimizer: Optimizer) -> None:
        """Take part in the gathering without numbers if measuring failed here, because other processes wait for it."""
        layers = self._of[optimizer]
        spread = [layer for layer in layers if layer.pieces.sharded and _usable(layer.parameter.grad)]
        if spread:
            send_to_host([(layer, None) for layer in spread])


def _views(layer: Layer, tensors: list[Tensor | None]) -> list[Any]:
    """Return this process's chosen pieces of tensors shaped like the parameter: (pieces, entries…). None stays None."""
    given = [x for x in tensors if x is not None]
    places = layer.pieces.places
    if layer.pieces.sharded:
        given = [local(cut_like(x, layer.parameter)) for x in given]
    rows = iter(layer.pieces.split.rows(*given))
    for place, x in enumerate(tensors):
        if x is not None:
            tensors[place] = next(rows) if places is None else _taken(next(rows), places)
    return tensors


def _taken(x: Tensor, places: Tensor | slice) -> Tensor:
    """Return rows of x. On a CPU NumPy selects them, because torch would compete with the threads of training."""
    if isinstance(places, slice):
        return x[places]
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return x.index_select(0, places)
    return torch.from_numpy(x.numpy()[places.numpy()])


def _usable(grad: Tensor | None) -> bool:
    return grad is not None and not grad.is_sparse


def _momentum(state: Mapping[str, Any], p: Tensor) -> Tensor | None:
    """Return the optimizer's average of gradients, or None if it has none of the parameter's shape."""
    for name in MOMENTUM_KEYS:
        m = state.get(name)
        if isinstance(m, Tensor) and m.shape == p.shape:
            return m
    return None


def _second_moment(state: Mapping[str, Any], group: Mapping[str, Any], p: Tensor, vectors: int) -> SecondMoment | None:
    """Return the optimizer's average of squared gradients after the step, or None if it has none of that kind."""
    for name in SECOND_MOMENT_KEYS:
        v = state.get(name)
        if isinstance(v, Tensor) and (v.shape == p.shape or v.shape == (vectors,)):
            break
    else:
        return None
    eps = group.get("eps", 0.0)
    betas = group.get("betas", ())
    if name == "square_avg" and _are_numbers(eps):
        return SecondMoment(v, 1.0, eps, 1.0)
    if len(betas) != 2 or "step" not in state or not _are_numbers(eps, *betas):
        return None
    beta1, beta2 = betas
    # Capturable optimizers keep the count on a device. It stays a tensor, because reading it would wait.
    step = state["step"]
    count = step if isinstance(step, Tensor) and step.device.type != "cpu" else float(step)
    return SecondMoment(v, 1 - beta2**count, eps, (1 - beta1**count) / (1 - beta1))


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, float | int | Tensor) for value in values)


def _scaler_state(optimizer: Optimizer) -> Tensor | None:
    """Return found_inf and the gradients' scale, which GradScaler sets on an optimizer during a fused step."""
    found_inf = getattr(optimizer, "found_inf", None)
    if not isinstance(found_inf, Tensor):
        return None
    scale = getattr(optimizer, "grad_scale", None)
    # A scaler that unscaled the gradients before the step leaves no scale.
    scale = scale.detach().reshape(()) if isinstance(scale, Tensor) else torch.ones_like(found_inf).reshape(())
    return torch.stack([found_inf.detach().reshape(()).to(scale), scale]).clone()
