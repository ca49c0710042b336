"""What a transfer is made of: the scale of a run, and a rule applied to a change of scale."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from gyroscope._checks import check_positive
from gyroscope.theory.rules.base import UpdateRule
from gyroscope.theory.transfer_rules import AXES


@final
@dataclass(frozen=True)
class Scale:
    """The size of a run. Batch and tokens have one unit: tokens, samples or anything else that is counted.

    batch   tokens in one step
    tokens  tokens in the whole run
    width   entries of one weight vector of a hidden layer
    depth   number of blocks
    params  number of parameters, assumed to grow as width² × depth if it is not given

    >>> Scale(batch=0.5e6, tokens=10e9).steps
    20000.0
    """

    batch: float
    tokens: float
    width: float | None = None
    depth: float | None = None
    params: float | None = None

    def __post_init__(self) -> None:
        for name in (*AXES, "params"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.tokens < self.batch:
            raise ValueError(f"tokens={self.tokens:g} is less than one batch={self.batch:g}. Use one unit for both")

    @property
    def steps(self) -> float:
        """The number of steps."""
        return self.tokens / self.batch


@final
@dataclass(frozen=True)
class TransferSettings:
    """The settings of one group of parameters."""

    lr: float
    weight_decay: float


@final
@dataclass(frozen=True)
class TransferRow:
    """A rule applied to a change of scale: its settings, and what they keep. None means not determined."""

    name: str
    source: str
    lr: float | None = None
    weight_decay: float | None = None
    betas: tuple[float, float] | None = None  # if the rule changes them
    eps_factor: float = 1.0
    groups: Mapping[str, TransferSettings] = field(default_factory=dict)  # of hidden weights, head, embeddings, gains
    rotation: float | None = None  # radians per step at the peak learning rate in equilibrium
    memory: float | None = None  # tokens after which a direction is forgotten
    run_length: float | None = None  # memories in the whole run
    rms_entry: float | None = None  # RMS entry of a weight in equilibrium
    start_over_rotation: float | None = None  # rotation of the first steps over equilibrium, from the initial norm
    silent_on: tuple[str, ...] = ()  # changed axes that the rule does not cover, filled with the favoured rule
    rule_by_axis: Mapping[str, str] = field(default_factory=dict)  # the rule that each changed axis follows
    note: str = ""  # why there are no settings
    decay_by_axis: Mapping[str, float] = field(default_factory=dict)  # factor of lr·weight_decay, on a sphere of lr²

    def applied_to(self, rule: UpdateRule) -> UpdateRule:
        """Return the rule with the settings of this row that it has."""
        settings = {"lr": self.lr, "weight_decay": self.weight_decay, "betas": self.betas}
        own = {name: value for name, value in settings.items() if value is not None and name in rule.plain.settings}
        return with_settings(rule, own)


def with_settings(rule: UpdateRule, settings: Mapping[str, Any]) -> UpdateRule:
    """Return the rule with these settings. A rule that only keeps norms passes them to its inner rule.

    >>> from gyroscope.theory import AdamW, FixedNorm
    >>> with_settings(FixedNorm(AdamW(1e-3, 0.1)), {"lr": 2e-3}).plain.lr
    0.002
    """
    plain = rule.plain.replace(**settings)
    return plain if rule.plain is rule else rule.replace(rule=plain)
