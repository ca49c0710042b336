"""Published rules for moving tuned settings to another scale, as data.

Every rule multiplies the learning rate and the weight decay by powers of the ratios of batch B, tokens D, width m and
depth L. A rule is silent on the axes that it was not made for. `DEFAULTS` fills them, so that rules can
be compared over any change.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias, final

from gyroscope.theory.rules.base import UpdateRule

AXES = ("batch", "tokens", "width", "depth")
Powers: TypeAlias = Mapping[str, float]
Family: TypeAlias = Literal["any", "adam", "sphere", "sgd"]

# The optimizers of each family, for a sentence.
FAMILIES: Mapping[Family, str] = MappingProxyType(
    {
        "any": "every optimizer",
        "adam": "optimizers with decoupled weight decay (AdamW, NAdam, Lion, Muon)",
        "sphere": "optimizers that keep norms (Hyperball)",
        "sgd": "SGD with momentum",
    }
)
# The same in the cell of a table.
MADE_FOR: Mapping[Family, str] = MappingProxyType(
    {"any": "every optimizer", "adam": "AdamW", "sphere": "Hyperball", "sgd": "SGD"}
)
# Fill an axis on which a rule is silent: the powers of the learning rate and of the weight decay.
DEFAULTS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "batch": (0.5, 0.0),  # the square root
        "tokens": (0.0, -1.0),  # run length is kept
        "width": (-1.0, 1.0),  # "independent"
        "depth": (0.0, 0.0),
    }
)
# The same for a rule without weight decay, whose learning rate is its rotation. Width moves nothing on a sphere. A run
# keeps its length in memories if the square of the rotation falls as the number of steps grows.
SPHERE_DEFAULTS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"batch": (0.5, 0.0), "tokens": (-0.5, 0.0), "width": (0.0, 0.0), "depth": (0.0, 0.0)}
)


@final
@dataclass(frozen=True)
class TransferRule:
    """A transfer rule: powers of the ratios of batch, tokens, width and depth.

    name          as it is printed and typed
    lr            powers in the factor of the learning rate
    weight_decay  powers in the factor of the weight decay
    source        where the rule was published, with the year
    speaks_of     the axes that the rule covers
    family        the optimizers that it was made for
    tokens_per_param  power of tokens per parameter, D/N, in the factor of the weight decay
    lr_limit      the largest learning rate that the rule allows
    beta2         how the rule changes β2 with the batch: 1 - (1-β2)·r ("linear"), β2^r ("power"), or not at all (None)
    scales_eps    whether ε is divided by √r
    beta2_range   the smallest and largest β2 that the rule allows, None without limits

    >>> TransferRule("mine", {"batch": 0.5}, {"tokens": -1}, "my notebook").speaks_of
    ('batch', 'tokens')
    """

    name: str
    lr: Powers
    weight_decay: Powers
    source: str
    speaks_of: tuple[str, ...] = ()
    family: Family = "adam"
    tokens_per_param: float = 0.0
    lr_limit: float | None = None
    beta2: Literal["linear", "power"] | None = None
    scales_eps: bool = False
    beta2_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for axis in (*self.lr, *self.weight_decay, *self.speaks_of):
            if axis not in AXES:
                raise ValueError(f"transfer rule {self.name!r}: unknown axis {axis!r}. The axes are {', '.join(AXES)}")
        if not self.speaks_of:
            used = tuple(axis for axis in AXES if axis in self.lr or axis in self.weight_decay)
            object.__setattr__(self, "speaks_of", used)

    def powers(self, silent: Collection[str]) -> tuple[dict[str, float], dict[str, float]]:
        """Return the powers of lr and weight decay by axis, with the defaults on axes that the rule is silent on."""
        defaults = SPHERE_DEFAULTS if self.family == "sphere" else DEFAULTS
        given = {axis: (self.lr.get(axis, 0.0), self.weight_decay.get(axis, 0.0)) for axis in AXES}
        powers = {axis: defaults[axis] if axis in silent else given[axis] for axis in AXES}
        lr = {axis: of_lr for axis, (of_lr, _) in powers.items()}
        decay = {axis: of_decay for axis, (_, of_decay) in powers.items()}
        decay["tokens"] += self.tokens_per_param
        return lr | {"params": 0.0}, decay | {"params": -self.tokens_per_param}

    @property
    def rotation_power(self) -> int:
        """x in: decay per step ∝ lr^x at a given weight decay. On a sphere the learning rate is the rotation itself."""
        return 2 if self.family == "sphere" else 1


RULES: tuple[TransferRule, ...] = (
    TransferRule("copy", {}, {}, "what people do", speaks_of=AXES, family="any"),
    TransferRule("sqrt-batch", {"batch": 0.5}, {}, "ArchScale 2025, pretrain.py, mode default"),
    TransferRule("sde", {"batch": 0.5}, {}, "Malladi et al. 2022, arXiv 2205.10287", beta2="linear", scales_eps=True),
    TransferRule(
        "tau",
        {"batch": 0.5},
        {"batch": 0.5, "tokens": -1.0},
        "Wang and Aitchison 2024, arXiv 2405.13698, with the square root of nanochat 2025, base_train.py",
    ),
    TransferRule(
        "tau-wd",
        {},
        {"batch": 1.0, "tokens": -1.0},
        "Bergsma et al. 2025, arXiv 2505.13738, weight decay in proportion to the batch",
    ),
    TransferRule(
        "power-lines",
        {},
        {"batch": 1.0, "tokens": -1.0},
        "Bergsma et al. 2025, arXiv 2505.13738",
        tokens_per_param=0.527,
    ),
    TransferRule(
        "completed",
        {"batch": 0.5, "tokens": -0.5},
        {"batch": 0.5, "tokens": -0.5},
        "Marin 2026, completed_adamh.py, with our reading of the decay in arXiv 2512.22382 (2025)",
    ),
    TransferRule("horizon", {"tokens": -0.32}, {}, "Bjorck et al. 2024, arXiv 2409.19913"),
    TransferRule("mup", {"width": -1.0}, {}, "mup 2022, MuAdam with decoupled_wd=True"),
    TransferRule(
        "independent",
        {"width": -1.0},
        {"width": 1.0},
        "mup 2022, MuAdam by default. Kosson et al. 2025, arXiv 2510.19093",
    ),
    TransferRule("fan", {"width": -1.0}, {"width": 0.5}, "Fan et al. 2025, arXiv 2510.15262"),
    TransferRule(
        "hyperp",
        {"batch": 0.5, "tokens": -0.32, "depth": -0.5},
        {},
        "ArchScale 2026, pretrain.py, arXiv 2603.28743",
        family="sphere",
    ),
    TransferRule(
        "marin-adamh",
        {"batch": 0.5, "tokens": -0.30},
        {},
        "Marin 2026, completed_adamh.py",
        family="sphere",
        lr_limit=0.01,
        beta2="power",
        beta2_range=(0.9, 0.9999),
    ),
    TransferRule(
        "marin-muonh",
        {"batch": 0.5, "tokens": -0.346, "width": -0.345},
        {},
        "Marin 2026, moe_hero_ep/heuristic.py",
        family="sphere",
    ),
    TransferRule("linear", {"batch": 1.0}, {}, "Goyal et al. 2017, arXiv 1706.02677. SMD appendix C.3", family="sgd"),
)


@final
@dataclass(frozen=True)
class Recommendation:
    """The rules to print first if no other axes than these change.

    names    one rule, or two if no trial decides
    trials   results of our trials, as a sentence
    decided  whether they support the one rule
    """

    axes: frozenset[str]
    names: tuple[str, ...]
    trials: str = "No trial of ours decides between the two yet."
    decided: bool = False


UNCHANGED = Recommendation(frozenset(), ("copy",), "", decided=True)
# By family. The first entry whose axes cover the change counts. docs/transfer.md describes the trials.
RECOMMENDED: Mapping[Family, tuple[Recommendation, ...]] = {
    "adam": (
        UNCHANGED,
        Recommendation(frozenset({"depth"}), ("copy",), "No trial of ours supports it yet."),
        Recommendation(
            frozenset({"width"}),
            ("mup",),
            "Our trials of AdamW support it. On a GPT of 2, 4 and 8 times the width it had the lowest loss on average: "
            "fan ended 0.006 nats above it, independent 0.019, copied settings 0.32. At 4 and 8 times the width twice "
            "its learning rate was better by 0.01 and 0.026, which is undecided.",
            decided=True,
        ),
        Recommendation(
            frozenset({"batch"}),
            ("tau",),
            "Our trials of AdamW support it. With a quarter and four times the batch it had the lowest loss on average "
            "over four networks: sqrt-batch ended 0.003 nats above it, the linear rule 0.012, copied settings 0.013.",
            decided=True,
        ),
        Recommendation(
            frozenset({"tokens"}),
            ("horizon",),
            "Our trials of AdamW support it. With a quarter and four times the tokens it had the lowest loss, on "
            "average over four networks: copied settings ended 0.01 nats above it, tau 0.015. With four times the "
            "tokens alone, these three ended within 0.004 nats of each other.",
            decided=True,
        ),
        Recommendation(
            frozenset(AXES), ("tau", "completed"), "No trial of ours covers a change of several axes at once."
        ),
    ),
    "sphere": (UNCHANGED, Recommendation(frozenset(AXES), ("hyperp", "marin-muonh"))),
    "sgd": (UNCHANGED, Recommendation(frozenset(AXES), ("linear", "copy"))),
}


def family_of(rule: UpdateRule) -> Family:
    """Return the family of transfer rules that fits an update rule.

    >>> from gyroscope.theory import SGDM
    >>> family_of(SGDM(0.1, 5e-4))
    'sgd'
    """
    if not rule.has_weight_decay and rule.keeps_norm and rule.plain is rule:
        return "sphere"
    if rule.plain.is_decoupled:
        return "adam"
    if not rule.plain.gradient_scales_update:
        raise ValueError(
            f"no published rule covers {rule.name}, because its weight decay is not decoupled. Transfer AdamW instead"
        )
    return "sgd"


def check_family(each: TransferRule, rule: UpdateRule) -> None:
    """Raise unless a transfer rule was made for the optimizer."""
    if each.family not in ("any", family_of(rule)):
        raise ValueError(
            f"the transfer rule {each.name!r} is for {FAMILIES[each.family]}, not for {rule.name}. "
            f"Choose one of {', '.join(other.name for other in RULES if other.family in ('any', family_of(rule)))}"
        )
