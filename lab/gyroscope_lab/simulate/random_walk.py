"""Random walks of weight vectors under any optimizer, many settings at once: the ground truth for the theory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gyroscope.theory import UpdateRule
from gyroscope.theory.schedules import Multiplier, multipliers
from gyroscope.tools import Array, check_count, positive_array
from gyroscope_lab.simulate.gradient_models import Gradient, SimpleSystem, TangentNoise
from gyroscope_lab.simulate.trajectory import Trajectory, TrajectoryBuilder
from gyroscope_lab.simulate.updates import Factory, RuleUpdate, TorchUpdate, Update, kind

# Number of weights below which a second thread is slower than one.
SMALL = 1 << 20

# A rule of the theory, or a function from parameters to a torch optimizer.
Optimizer: TypeAlias = UpdateRule | Factory


def random_walk(
    optimizers: Optimizer | Sequence[Optimizer],
    schedule: Multiplier | Sequence[float] | None = None,
    *,
    steps: int | None = None,
    norm: npt.ArrayLike,
    unit_grad_norm: npt.ArrayLike = 1.0,
    shape: tuple[int, int] = (128, 128),
    granularity: Literal["neuron", "tensor"] = "neuron",
    independent: bool = False,
    every: int = 1,
    average: int = 1,
    reference: int | None = None,
    seed: int | torch.Generator = 0,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Trajectory:
    """Simulate weight vectors under tangent white noise: scale-invariant weights if noise dominates, no network.

    Arguments:
        optimizers: a rule of the theory or a function from parameters to an optimizer, or a list of them, one for each
            setting.
        schedule, steps: as in `theory.forecast`.
        norm: initial norm of every vector, in a random direction. A number, or one for each setting.
        unit_grad_norm: RMS gradient norm times the weight norm. A number, or one for each setting.
        shape: (vectors, entries of each).
        granularity: "neuron" if each row is a vector, "tensor" if the whole matrix is one vector.
        independent: draw noise for each setting. By default all settings share it, which makes a sweep comparable.
        every: steps per record.
        average: number of steps at the end of a record that it averages. 1 means the last step alone.
        reference: step after which directions are stored, for `Trajectory.cosine`.
        seed: a number, or a generator on `device`.
        dtype: float32, or float64 for angles below 1e-6 rad.
        device: device of the weights.
        progress: called every hundred steps with the number of steps done.

    >>> from gyroscope.theory import AdamW
    >>> rule = AdamW(lr=1e-2, weight_decay=1.0)
    >>> end = random_walk(rule, steps=1500, norm=0.7, shape=(32, 64), every=50, average=50).averages(after=500)
    >>> f"measured/predicted = {end.layer_angular_update / rule.equilibrium().angular_update:.1f}"
    'measured/predicted = 1.0'
    """
    run = _Simulation(optimizers, shape, granularity == "tensor", seed, dtype, device)
    run.place(run.per_setting("norm", norm), independent)
    unit = run.per_setting("unit_grad_norm", unit_grad_norm)
    gradient = TangentNoise(run.vectors(run.weights), unit, run.generator, independent)
    return run.follow(gradient, multipliers(schedule, steps), every, average, reference, progress)


def network(
    optimizers: Optimizer | Sequence[Optimizer],
    schedule: Multiplier | Sequence[float] | None = None,
    *,
    steps: int | None = None,
    norm: npt.ArrayLike | None = None,
    shape: tuple[int, int] = (128, 128),
    batch: int = 32,
    gammas: tuple[Tensor, Tensor] | None = None,
    loss_scale: npt.ArrayLike = 1.0,
    independent: bool = False,
    every: int = 1,
    average: int = 1,
    reference: int | None = None,
    seed: int | torch.Generator = 0,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Trajectory:
    """Simulate the simple system of RE Appendix J, f(X) = γ_out ⊙ N(W(γ_in ⊙ X)) with random X and ∂L/∂f.

    Arguments:
        optimizers, schedule, steps, shape, independent, every, average, reference: as in `random_walk`.
        norm: as in `random_walk`. None initialises the weights like torch's linear layer.
        batch: columns of X.
        gammas: γ_in and γ_out. Default: ones. `random_gammas` draws those of the paper.
        loss_scale: standard deviation of ∂L/∂f, times vectors × batch. A number, or one for each setting.
        seed, dtype, device, progress: as in `random_walk`.

    >>> from gyroscope.theory import SGDM
    >>> walk = network(SGDM(0.1, 1e-2, 0.9), steps=100, shape=(16, 32), every=50)
    >>> walk.norm.shape
    (2, 16)
    """
    check_count("batch", batch, at_least=4)  # the normalisation removes two of its directions
    run = _Simulation(optimizers, shape, False, seed, dtype, device)
    run.place(None if norm is None else run.per_setting("norm", norm), independent)
    scale = run.per_setting("loss_scale", loss_scale)
    gamma_in = None
    if gammas is not None:
        gamma_in, gamma_out = (gamma.to(run.weights) for gamma in gammas)
        if gamma_in.shape != (shape[1],) or gamma_out.shape != (shape[0],):
            raise ValueError(
                f"gammas of shapes {tuple(gamma_in.shape)} and {tuple(gamma_out.shape)} do not fit a matrix of shape "
                f"{shape}: γ_in has one value for each column, γ_out one for each row"
            )
        scale = scale * gamma_out[:, None]
    gradient = SimpleSystem(run.weights, gamma_in, scale, batch, run.generator, independent)
    return run.follow(gradient, multipliers(schedule, steps), every, average, reference, progress)


def random_gammas(shape: tuple[int, int], seed: int | torch.Generator = 0) -> tuple[Tensor, Tensor]:
    """Draw γ_in and γ_out of RE Appendix J for a weight matrix of this shape: standard normal.

    >>> [len(gamma) for gamma in random_gammas((3, 5))]
    [5, 3]
    """
    generator = _generator(seed, "cpu")
    return torch.randn(shape[1], generator=generator), torch.randn(shape[0], generator=generator)


@final
class _Simulation:
    """Weights and gradients of all settings, (settings, rows, columns). Rules of one kind are next to each other."""

    def __init__(
        self,
        optimizers: Optimizer | Sequence[Optimizer],
        shape: tuple[int, int],
        whole: bool,
        seed: int | torch.Generator,
        dtype: torch.dtype,
        device: str | torch.device,
    ) -> None:
        # float16 and bfloat16 would round the steps away.
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype={dtype} is too coarse to follow small angles: use torch.float32 or torch.float64")
        if len(shape) != 2 or shape[0] < 1 or shape[1] < 2:
            raise ValueError(f"shape={shape!r} must be (vectors, entries of each), with 2 entries or more")
        self.single = not isinstance(optimizers, Sequence)
        self.optimizers: Sequence[Any] = [optimizers] if self.single else list(optimizers)  # type: ignore[arg-type]
        if not self.optimizers:
            raise ValueError("optimizers=[] leaves nothing to simulate: pass one rule or more")
        kinds = [kind(optimizer) for optimizer in self.optimizers]
        # Rules of one kind move in one batch, so their weights are adjacent. `order` restores their order.
        self.order = sorted(range(len(kinds)), key=lambda i: tuple(map(str, kinds[i])))
        self.kinds = [kinds[i] for i in self.order]
        self.whole = whole
        self.weights = torch.empty(len(kinds), *shape, dtype=dtype, device=device)
        self.grad = torch.zeros_like(self.weights)
        self.generator = _generator(seed, device)

    def vectors(self, x: Tensor) -> Tensor:
        """Return a view of shape (settings, vectors, entries)."""
        return x.flatten(1).unsqueeze(1) if self.whole else x

    def per_setting(self, name: str, value: npt.ArrayLike) -> Tensor:
        """Return a positive number, or one for each setting in the order of the weights: (settings or 1, 1, 1)."""
        values = np.atleast_1d(positive_array(name, value))
        if values.shape not in ((1,), (len(self.order),)):
            raise ValueError(f"{name} of shape {values.shape}: pass one number, or one for each of {len(self.order)}")
        if len(values) > 1:
            values = values[self.order]  # the order of the weights differs from that of the settings
        return torch.tensor(values, dtype=self.weights.dtype, device=self.weights.device)[:, None, None]

    def place(self, norm: Tensor | None, independent: bool) -> None:
        """Initialise all settings in the same random directions unless `independent`, at these norms or as in torch."""
        # One draw for all settings, or one for each.
        first = torch.empty_like(self.weights if independent else self.weights[:1])
        if norm is None:
            bound = first.shape[2] ** -0.5
            self.weights.copy_(first.uniform_(-bound, bound, generator=self.generator))
            return
        self.weights.copy_(first.normal_(generator=self.generator))
        vectors = self.vectors(self.weights)
        vectors.mul_(norm / torch.linalg.vector_norm(vectors, dim=2, keepdim=True))

    @torch.no_grad()
    def follow(
        self,
        gradient: Gradient,
        schedule: Array,
        every: int,
        average: int,
        reference: int | None,
        progress: Callable[[int], None] | None,
    ) -> Trajectory:
        """Take all steps, and return the trajectory."""
        weights = self.vectors(self.weights)
        grad = self.vectors(self.grad)
        rows = weights.flatten(0, 1)
        grad_rows = grad.flatten(0, 1)
        recorder = TrajectoryBuilder(rows, steps=len(schedule), every=every, average=average, reference=reference)
        updates = self._updates()
        with _few_threads(weights):
            for t, multiplier in enumerate(schedule.tolist()):
                gradient(weights, grad)
                recorder.before(t, rows, grad_rows)
                for update in updates:
                    update(t + 1, multiplier)
                recorder.after(t, rows)
                if progress is not None and (t + 1) % 100 == 0:
                    progress(t + 1)
        shape = (weights.shape[0], weights.shape[1])
        return recorder.trajectory(shape[1:] if self.single else shape, None if self.single else self.order)

    def _updates(self) -> list[Update]:
        """Return one update for each kind of rule, and one for each factory."""
        updates: list[Update] = []
        for _, group in groupby(range(len(self.order)), key=lambda i: self.kinds[i]):
            places = list(group)
            optimizers = [self.optimizers[self.order[i]] for i in places]
            block = slice(places[0], places[-1] + 1)
            if isinstance(optimizers[0], UpdateRule):
                w, grad = (self.vectors(x)[block].flatten(0, 1) for x in (self.weights, self.grad))
                updates.append(RuleUpdate(optimizers, w, grad))
            else:
                chosen = zip(optimizers, self.weights[block], self.grad[block], strict=True)
                updates.extend(TorchUpdate(factory, w, grad) for factory, w, grad in chosen)
        return updates


@contextmanager
def _few_threads(weights: Tensor) -> Iterator[None]:
    """Use one thread while tensors are small, because more would mostly wait for each other."""
    threads = torch.get_num_threads()
    if weights.numel() < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _generator(seed: int | torch.Generator, device: str | torch.device) -> torch.Generator:
    return seed if isinstance(seed, torch.Generator) else torch.Generator(device).manual_seed(seed)
