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
    """A layer as judgements see it. Numbers that are not known are NaN, and the rest is None.

    name                of the parameter
    rule                of the optimizer, at the peak learning rate or at that of the last step
    keeps_norm          whether the optimizer holds the norms and sets the angle
    norm_state          how the norm compares with its equilibrium
    predicted_rotation  in equilibrium, in radians per step
    rotation_ratio      measured over predicted rotation, as root mean squares
    rotation            RMS in radians per step, as planned in the middle of the run, or as measured
    memory              1/a in steps, with the decay per step a at the peak learning rate
    run_length          Σ a_t over the run, in memories
    settled_at          step at which the norm came within 10 % of equilibrium
    sets_imbalance      whether its optimizer was told to rotate neurons at different speeds
    start               fastest step of the start; None if there is no equilibrium to compare it with
    departure           where the norm falls out of its equilibrium; None if it does not
    vectors             number of vectors that were measured
    dead                those among them that never had a gradient
    neuron_spread       how differently the neurons rotate; None if that cannot be told
    update_growth       how the largest updates have grown; None if only one step is known
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def rule(self) -> UpdateRule | None: ...  # noqa: D102
    @property
    def keeps_norm(self) -> bool: ...  # noqa: D102
    @property
    def norm_state(self) -> NormState: ...  # noqa: D102
    @property
    def predicted_rotation(self) -> float: ...  # noqa: D102
    @property
    def rotation_ratio(self) -> float: ...  # noqa: D102
    @property
    def rotation(self) -> float: ...  # noqa: D102
    @property
    def memory(self) -> float: ...  # noqa: D102
    @property
    def run_length(self) -> float: ...  # noqa: D102
    @property
    def settled_at(self) -> float: ...  # noqa: D102
    @property
    def sets_imbalance(self) -> bool: ...  # noqa: D102
    @property
    def start(self) -> Start | None: ...  # noqa: D102
    @property
    def departure(self) -> Departure | None: ...  # noqa: D102
    @property
    def vectors(self) -> float: ...  # noqa: D102
    @property
    def dead(self) -> int: ...  # noqa: D102
    @property
    def neuron_spread(self) -> NeuronSpread | None: ...  # noqa: D102
    @property
    def update_growth(self) -> UpdateGrowth | None: ...  # noqa: D102


class CheckpointView(LayerView, Protocol):
    """What a checkpoint shows of a layer beside that, for judgements and for a page.

    is_embedding     whether its vectors are tokens, which are shown and not judged
    exact            whether the rotation of the last step is exact
    error            relative error of an estimate
    norm             RMS norm of its vectors
    peak_lr          peak learning rate of the schedule, NaN if the file does not contain it
    norm_ratio       norm over that of equilibrium, at the peak rate or else at the last one
    spread           95th over 5th percentile of the vectors' angles, over that of noise
    signal_ratio     |signal|²/E|noise|² of a batch's gradient
    alignment        mean square of updates over that of noise
    lambda_u         weight decay that a radial gradient amounts to
    lambda_u_error   standard error of it
    explained_share  part of the push along the weight that gradients orthogonal to it explain
    non_finite       vectors with a weight, or a state of the optimizer, that is not finite
    """

    @property
    def is_embedding(self) -> bool: ...  # noqa: D102
    @property
    def exact(self) -> bool: ...  # noqa: D102
    @property
    def error(self) -> float: ...  # noqa: D102
    @property
    def norm(self) -> float: ...  # noqa: D102
    @property
    def norm_ratio(self) -> float: ...  # noqa: D102
    @property
    def spread(self) -> float: ...  # noqa: D102
    @property
    def peak_lr(self) -> float: ...  # noqa: D102
    @property
    def signal_ratio(self) -> float: ...  # noqa: D102
    @property
    def alignment(self) -> float: ...  # noqa: D102
    @property
    def lambda_u(self) -> float: ...  # noqa: D102
    @property
    def lambda_u_error(self) -> float: ...  # noqa: D102
    @property
    def explained_share(self) -> float: ...  # noqa: D102
    @property
    def non_finite(self) -> int: ...  # noqa: D102


class DriftView(Protocol):
    """A layer in two checkpoints.

    name             of the parameter
    steps            between the files
    angle            mean angle between the two, in radians
    norm_ratio       norm after over before
    effective_decay  what is lost of the first file's weights, as -ln of what is left
    expected_decay   the same in equilibrium
    memory           steps after which 1/e of a direction is left
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def steps(self) -> float: ...  # noqa: D102
    @property
    def angle(self) -> float: ...  # noqa: D102
    @property
    def norm_ratio(self) -> float: ...  # noqa: D102
    @property
    def effective_decay(self) -> float: ...  # noqa: D102
    @property
    def expected_decay(self) -> float: ...  # noqa: D102
    @property
    def memory(self) -> float: ...  # noqa: D102
