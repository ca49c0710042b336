"""What judgements read of a layer, whether it was planned, measured in a run or found in a checkpoint."""

from typing import Literal, NamedTuple, Protocol

from gyroscope.theory import UpdateRule

NormState = Literal[
    "unknown",  # without a prediction to compare with
    "keeps norm",  # the optimizer holds it
    "follows base",  # the same, and the angle is that of the base optimizer
    "grows",  # no decay holds it, because steps are relative to it
    "no decay",  # never forgets its start
    "short",  # in a run shorter than its memory: mostly where it started
    "settled",  # within 10 % of equilibrium
    "transient",  # on the way there, about as fast as theory predicts
    "far",  # further off, or not there by the end of a plan
    "steady",  # far from it and still, by a force that theory does not contain
    "fell out",  # was settled, and is now too large for its learning rate
]


class Start(NamedTuple):
    """The fastest step of a start: its rotation over the equilibrium's at full rate."""

    ratio: float
    step: float


class Departure(NamedTuple):
    """The step at which a norm leaves its equilibrium, and its ratio to it at the end."""

    step: float
    norm_ratio: float


class NeuronSpread(NamedTuple):
    """95th over 5th percentile of the neurons' rotation, the same under noise, and how many times that is usual."""

    ratio: float
    noise: float
    most: float

    @property
    def excess(self) -> float:
        """The spread over that of noise."""
        return self.ratio / self.noise


class UpdateGrowth(NamedTuple):
    """The largest update late in a run over an early one, and in units of lr."""

    factor: float
    largest: float


class LayerView(Protocol):
    """A layer as judgements see it. Numbers that are not known are NaN, and the rest is None."""

    @property
    def name(self) -> str:
        """Name of the parameter."""

    @property
    def rule(self) -> UpdateRule | None:
        """Rule of the optimizer, at the peak learning rate or at that of the last step."""

    @property
    def keeps_norm(self) -> bool:
        """Whether the optimizer holds the norms and sets the angle."""

    @property
    def norm_state(self) -> NormState:
        """How the norm compares with its equilibrium."""

    @property
    def predicted_rotation(self) -> float:
        """Rotation in equilibrium, in radians per step."""

    @property
    def rotation_ratio(self) -> float:
        """Measured over predicted rotation, as root mean squares."""

    @property
    def total_decay(self) -> float:
        """X = Σ a_t over the run."""

    @property
    def start(self) -> Start | None:
        """The fastest step of the start; None if there is no equilibrium to compare it with."""

    @property
    def departure(self) -> Departure | None:
        """Where the norm falls out of its equilibrium; None if it does not."""

    @property
    def vectors(self) -> float:
        """Number of vectors that were measured."""

    @property
    def dead(self) -> int:
        """Vectors among them that never had a gradient."""

    @property
    def neuron_spread(self) -> NeuronSpread | None:
        """How differently the neurons turn; None if there are too few to tell."""

    @property
    def update_growth(self) -> UpdateGrowth | None:
        """How the largest updates have grown; None if only one step is known."""


class CheckpointView(LayerView, Protocol):
    """What only a checkpoint shows: the state of the optimizer."""

    @property
    def is_embedding(self) -> bool:
        """Whether its vectors are tokens, which are shown and not judged."""

    @property
    def exact(self) -> bool:
        """Whether the rotation of the last step is exact."""

    @property
    def error(self) -> float:
        """Relative error of an estimate."""

    @property
    def rotation(self) -> float:
        """Mean rotation of the last step, in radians."""

    @property
    def norm_ratio(self) -> float:
        """Norm over that of equilibrium."""

    @property
    def timescale(self) -> float:
        """Steps after which a direction is forgotten."""

    @property
    def signal_ratio(self) -> float:
        """|signal|²/E|noise|² of a batch's gradient."""

    @property
    def alignment(self) -> float:
        """Mean square of updates over that of noise."""

    @property
    def lambda_u(self) -> float:
        """Weight decay that a radial gradient amounts to."""

    @property
    def lambda_u_error(self) -> float:
        """Standard error of it."""

    @property
    def non_finite(self) -> int:
        """Vectors with a weight, or a state of the optimizer, that is not finite."""


class DriftView(Protocol):
    """A layer in two checkpoints."""

    @property
    def name(self) -> str:
        """Name of the parameter."""

    @property
    def steps(self) -> float:
        """Steps between the files."""

    @property
    def angle(self) -> float:
        """Mean angle between the two, in radians."""

    @property
    def effective_decay(self) -> float:
        """Part of the first file's weights that is lost, as -ln."""

    @property
    def expected_decay(self) -> float:
        """The same in equilibrium."""

    @property
    def memory(self) -> float:
        """Steps after which 1/e of a direction is left."""
