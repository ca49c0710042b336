"""The facts about a layer that judgements use, for a plan, a run or a checkpoint."""

from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from gyroscope.theory import UpdateRule

NormState = Literal[
    "unknown",  # without a prediction to compare with
    "keeps norm",  # the optimizer keeps it fixed
    "follows base",  # the same, with the angle of the base optimizer
    "grows",  # no decay limits it, because steps are relative to it
    "no decay",  # never forgets its start
    "short",  # near its initial value, in a run shorter than its memory
    "settled",  # within 10 % of equilibrium
    "transient",  # on the way there, about as fast as theory predicts
    "far",  # further off, or not there by the end of a plan
    "steady",  # constant and far from it, because of a force that the theory does not contain
    "fell out",  # had settled, and is now too large for its learning rate
]


class Start(NamedTuple):
    """The fastest step at the start, and its rotation over that of equilibrium at full rate."""

    ratio: float
    step: float


class Departure(NamedTuple):
    """The step at which a norm leaves its equilibrium, and the ratio of the two at the end."""

    step: float
    norm_ratio: float


class NeuronSpread(NamedTuple):
    """95th over 5th percentile of the neurons' rotation, the same under noise, and how many times noise is usual."""

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
    """The facts about a layer that judgements use. Unknown numbers are NaN, and other unknown values None.

    name                of the parameter
    rule                of the optimizer, at the peak learning rate or at that of the last step
    keeps_norm          whether the optimizer keeps the norms fixed and sets the angle
    norm_state          how the norm compares with its equilibrium
    predicted_rotation  in equilibrium, in radians per step
    rotation_ratio      measured over predicted rotation, as root mean squares
    rotation            RMS in radians per step, as planned in the middle of the run, or as measured
    memory              1/a in steps, with the decay per step a at the peak learning rate
    run_length          Σ a_t over the run, in memories
    settled_at          step at which the norm came within 10 % of equilibrium
    sets_imbalance      whether its optimizer was set to rotate neurons at different speeds
    start               fastest step of the start. None if there is no equilibrium to compare it with
    departure           where the norm falls out of its equilibrium. None if it does not
    vectors             number of vectors that were measured
    dead                those among them that never had a gradient
    neuron_spread       how differently the neurons rotate. None if unknown
    update_growth       how the largest updates have grown. None if only one step is known
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


# `gyroscope.checkpoint.checkpoint_layer.CheckpointLayer`, a `LayerView` with more numbers, and the `LayerDrift` beside
# it, which document their fields. Their room is above this one, so they cannot be named here.
CheckpointView: TypeAlias = Any
DriftView: TypeAlias = Any
