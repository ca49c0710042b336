"""The record of one optimizer: every fact about it that more than one package needs."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, final

from gyroscope.theory import UpdateRule

Group = Mapping[str, Any]
Decay = Literal["decoupled", "coupled", "none"]

# The `base` of a wrapper: the optimizer that it was made around.
INNER = "inner"

# Entries of a parameter group that no optimizer's direction or rates depend on, or that every rule reads.
BOOKKEEPING = frozenset(
    ("params", "param_names", "shapes", "rule", "initial_lr", "step", "lr", "weight_decay", "eps", "maximize")
).union(("foreach", "fused", "capturable", "differentiable"))
# Options, of torch and of other libraries, that the theory does not cover, and why. Other options that a record does
# not know are refused by their name alone.
UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "amsgrad": "v never decreases",
        "ams_bound": "v never decreases",
        "caution": "updates that disagree with the gradient are left out (timm)",
        "cautious": "updates that disagree with the gradient, or their decay, are left out (the name fits both)",
        "corrected_weight_decay": "decay follows lr². gyroscope.optim.CorrectedDecay does the same and is covered",
        "split_sizes": "each block of rows is a matrix of its own (dion)",
        "extra_scale_factor": "it multiplies the update",
        "decouple_lr": "decay does not follow lr (optimi). torch's with weight_decay/lr decays alike",
        "fixed_decay": "decay does not follow lr (pytorch_optimizer). torch's with weight_decay/lr decays alike",
    }
)


class PlanChoice(NamedTuple):
    """A rule that `gyroscope plan` offers, with the settings of a plan that gives only its name."""

    name: str
    rule: type[UpdateRule]
    typical: Mapping[str, Any]


@final
@dataclass(frozen=True)
class FileSigns:
    """Signs by which a checkpoint shows its optimizer."""

    options: tuple[str, ...] = ()  # options in its parameter group
    state: tuple[str, ...] = ()  # names of its state of a parameter
    without: tuple[str, ...] = ()  # options and state that must be absent
    distinctive: bool = False  # whether no other optimizer has these options, so that they decide before any state

    def match(self, group: Group, state: Collection[str]) -> bool:
        """Return whether a saved group and the state of its parameters have all signs."""
        is_present = all(option in group for option in self.options) and all(name in state for name in self.state)
        return is_present and not any(name in group or name in state for name in self.without)


@final
@dataclass(frozen=True)
class OptimizerSpec:
    """The facts about an optimizer that more than one package needs."""

    path: str  # module and class, imported only by `load`
    rule: Callable[[Group], UpdateRule] | None  # from a parameter group to the theory's rule, None if there is none
    formula: str  # the name of its formulas in other packages: its last step and simulation
    momentum: tuple[str, ...] = ()  # state keys of its first moment, in the gradient's unit
    second_moment: tuple[str, ...] = ()  # state keys of its second moment. The first that is present sizes the step
    decay: Decay = "coupled"  # "decoupled": the weights themselves decay. "coupled": L2 in the gradient
    decay_switch: str | None = None  # the option that changes one kind of decay into the other
    is_linear: bool = False  # whether a step is linear in the gradient, so that L2 only acts along the weights
    scales_with_lr: bool = False  # whether a step is lr times something that depends on weights only by decay
    keeps_norms: bool = False  # whether it keeps each vector's norm and rotates it by an angle of its settings
    base: str | None = None  # if it keeps norms, the optimizer whose updates it uses, or `INNER` if it wraps one
    whole_matrix: bool = False  # whether the vector that rotates is the whole matrix
    known: tuple[str, ...] = ()  # options of the class, besides `BOOKKEEPING`, that the rule covers
    needed: tuple[str, ...] = ()  # settings besides lr without which there is no rule
    signs: tuple[FileSigns, ...] = ()  # how a checkpoint shows it: any of these is enough
    command: str = ""  # its name on the command line and in `gyro.optim.create`, or "" if it has none
    plans: tuple[PlanChoice, ...] = ()  # the rules that `gyroscope plan` offers for it
    typical: Mapping[str, Any] = field(default_factory=dict)  # settings for a user who names only the optimizer

    @property
    def name(self) -> str:
        """The name of the class.

        >>> OptimizerSpec("torch.optim.ASGD", None, "asgd").name
        'ASGD'
        """
        return self.path.rpartition(".")[2]

    @property
    def package(self) -> str:
        """The top package of the class, because modules move between versions."""
        return self.path.partition(".")[0]

    @property
    def is_ours(self) -> bool:
        """Whether the class is one of `gyroscope.optim`."""
        return self.path.startswith("gyroscope.")

    @property
    def wraps(self) -> bool:
        """Whether it is made around another optimizer."""
        return self.base == INNER

    def load(self) -> Any:
        """Import and return the class."""
        module, _, name = self.path.rpartition(".")
        return getattr(import_module(module), name)

    def is_decoupled(self, group: Group) -> bool:
        """Return whether the weights of this group decay directly, not through the gradient."""
        switched = self.decay_switch is not None and bool(group.get(self.decay_switch))
        return self.decay != "none" and (self.decay == "decoupled") != switched

    def is_shown_by(self, group: Group, state: Collection[str], *, distinctive: bool) -> bool:
        """Return whether a saved group and its state have signs of this optimizer, distinctive ones or others."""
        return any(signs.match(group, state) for signs in self.signs if signs.distinctive == distinctive)
