"""The settings of a training run: one frozen dataclass, made in Python or from the command line."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from gyroscope.theory.schedules import Schedule, constant, cosine, inverse_sqrt, linear, step
from gyroscope.tools import check_count, check_fraction, check_non_negative, check_positive

# Precision of the computation. pure-bf16 also rounds the weights, and most updates are then too small to change them.
Precision = Literal["float32", "bf16", "pure-bf16"]
Start = Literal["initial", "equilibrium", "equilibrium+embeddings"]
SCHEDULES = ("constant", "linear", "cosine", "step", "inverse_sqrt")


@dataclass(frozen=True)
class TrainConfig:
    """The settings of a training run.

    Arguments:
        task: digits, stdlib, translation, fashion-mnist, mnist, cifar10, cifar100, text:<file> (characters),
            bpe:<file> (byte pairs) or translation:<folder>.
        model: a network's name, with options after a colon: resnet20, gpt:layers=6,width=384.
        optimizer: a name of `gyroscope train --help`, with options of its class after a colon: k-adam:k=3.
        lr, weight_decay, momentum, betas: as in torch. None: the optimizer's own default.
        decay_embeddings: apply weight decay to embeddings too, as nanoGPT does.
        start: initial weights of the network, or rescaled to equilibrium norms, with or without embeddings that decay.
        init_scale: factor of the initial weights that rotate, applied before `start`.
        gain: add a learnable gain to each weight vector (`gyro.nn.add_gain`), for optimizers that keep norms.
        turn_head: whether the last layer, which no norm follows, rotates. It decays in either case.
        follow: let a rotational optimizer rotate as its base is forecast to (`gyro.optim.follow`).
        epochs, steps: length of the run. Give exactly one of them.
        schedule: constant, linear, cosine, step or inverse_sqrt.
        final: learning rate at the end of linear and cosine, as a share of the peak.
        milestones: shares of the run after which `step` divides lr by 10. Default: those of He et al. 2016, 4.2.
        rescale: rescale the weights that rotate to the norms of the new equilibrium when lr changes (SMD 5.2).
        warmup: length of the warmup, in the unit of the run length and part of it.
        batch_size: samples of one forward pass.
        accumulate: forward passes per step.
        clip: largest norm of the whole gradient. None: no clipping.
        norm: normalisation of a convolutional network.
        shrink: side of the squares of pixels that are averaged. 2 costs a quarter of the time on a CPU.
        augment: crop images padded by 4 pixels at random, and flip them.
        evaluations: number of evaluations on the validation set, evenly over the run.
        track: measure rotation while training.
        sample_every: steps between measurements. None: the tracker's own choice.
        neurons: regular expression of layers of which the run keeps every neuron. None: of no layer.
    """

    task: str = "digits"
    model: str = "cnn"
    optimizer: str = "adamw"
    lr: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    betas: tuple[float, float] | None = None
    decay_embeddings: bool = False
    start: Start = "initial"
    init_scale: float = 1.0
    gain: bool = False
    turn_head: bool = True
    follow: bool = False
    epochs: float | None = None
    steps: int | None = None
    schedule: str = "cosine"
    milestones: tuple[float, ...] = (0.5, 0.75)
    rescale: bool = False
    warmup: float = 0
    final: float = 0.0
    batch_size: int = 128
    accumulate: int = 1
    clip: float | None = None
    norm: str = "batch"
    shrink: int = 1
    augment: bool = False
    precision: Precision = "float32"
    compile: bool = False
    seed: int = 0
    evaluations: int = 10
    track: bool = True
    sample_every: int | None = None
    neurons: str | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"epochs={self.epochs!r} and steps={self.steps!r}: give the length of the run as exactly one of them"
            )
        for name in ("batch_size", "accumulate", "shrink", "evaluations"):
            check_count(name, getattr(self, name), at_least=1)
        if self.steps is not None:
            check_count("steps", self.steps, at_least=1)
        for name in ("lr", "weight_decay", "momentum", "epochs", "clip"):
            if getattr(self, name) is not None:
                check_non_negative(name, getattr(self, name))
        check_non_negative("warmup", self.warmup)
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule={self.schedule!r} is unknown: choose one of {', '.join(SCHEDULES)}")
        for name, known in (("precision", get_args(Precision)), ("start", get_args(Start))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown: choose one of {', '.join(known)}")
        check_positive("init_scale", self.init_scale)
        if self.sample_every is not None:
            check_count("sample_every", self.sample_every, at_least=1)
        for share in self.milestones:
            check_fraction("milestones", share)

    def num_steps(self, steps_per_epoch: int) -> int:
        """Return the number of optimizer steps of the run."""
        return self.steps if self.steps is not None else max(round((self.epochs or 0) * steps_per_epoch), 1)

    def multiplier(self, steps_per_epoch: int) -> Schedule:
        """Return the schedule: the learning rate over its peak, as a function of the step."""
        steps = self.num_steps(steps_per_epoch)
        warmup = min(round(self.warmup * (1 if self.steps is not None else steps_per_epoch)), steps)
        if self.schedule == "constant":
            return constant(steps, warmup)
        if self.schedule == "inverse_sqrt":
            return inverse_sqrt(steps, warmup)
        if self.schedule == "step":
            return step(steps, [round(share * steps) for share in self.milestones], 0.1, warmup)
        return (linear if self.schedule == "linear" else cosine)(steps, warmup, self.final)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for a file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainConfig":
        """Return the config of a file, or raise ValueError if it has an unknown setting."""
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise ValueError(f"unknown setting {name!r}: choose one of {', '.join(sorted(known))}")
        # A file has lists instead of tuples.
        tuples = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **tuples})
