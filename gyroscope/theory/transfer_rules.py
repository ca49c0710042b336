"""Published rules for moving tuned settings to another scale, as data.

Every rule multiplies the learning rate and the weight decay by powers of the ratios of batch B, tokens D, width m and
depth L. A rule is silent on the axes that it was not made for. The rule that our trials favour for the axis fills them
(`FAVOURED`), so that rules can be compared over any change. `compose` takes a rule for each axis.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias, final

from gyroscope.spelling import one_of
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
# The rule that we recommend for each axis. Trials support those of AdamW for batch, tokens and width
# (`transfer_trials`). The others are published.
FAVOURED: Mapping[Family, Mapping[str, str]] = MappingProxyType(
    {
        "any": {"batch": "copy", "tokens": "copy", "width": "copy", "depth": "copy"},
        "adam": {"batch": "tau", "tokens": "horizon", "width": "mup", "depth": "copy"},
        "sphere": {"batch": "hyperp", "tokens": "hyperp", "width": "copy", "depth": "copy"},
        "sgd": {"batch": "linear", "tokens": "copy", "width": "copy", "depth": "copy"},
    }
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
    parts         the names of the rules that it is composed of, by axis
    whole_run     whether the powers give the factor of the mean rotation over the run, transient included, instead of
                  that in equilibrium. The learning rate then follows from
                  `theory.mean_rotation`

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
    parts: Mapping[str, str] = field(default_factory=dict)
    whole_run: bool = False

    def __post_init__(self) -> None:
        for axis in (*self.lr, *self.weight_decay, *self.speaks_of):
            if axis not in AXES:
                raise ValueError(f"transfer rule {self.name!r}: unknown axis {axis!r}. The axes are {', '.join(AXES)}")
        if not self.speaks_of:
            used = tuple(axis for axis in AXES if axis in self.lr or axis in self.weight_decay)
            object.__setattr__(self, "speaks_of", used)

    def names(self) -> dict[str, str]:
        """Return the name of the rule that gives the powers of each axis, the favoured rule on silent axes."""
        own = {axis: self.parts.get(axis, self.name) for axis in self.speaks_of}
        return {**FAVOURED[self.family], **own}

    def powers(self, silent: Collection[str]) -> tuple[dict[str, float], dict[str, float]]:
        """Return the powers of lr and weight decay by axis, with those of the favoured rule on silent axes."""
        favoured = {axis: rule_named(FAVOURED[self.family][axis]) if axis in silent else self for axis in AXES}
        powers = {axis: (each.lr.get(axis, 0.0), each.weight_decay.get(axis, 0.0)) for axis, each in favoured.items()}
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

# Ours, without a trial that decides. It answers if it is asked for by name, and is in no table.
KEEP_ROTATION = TransferRule("keep-rotation", {}, {}, "ours 2026, on trial", speaks_of=AXES, whole_run=True)


def rule_named(name: str) -> TransferRule:
    """Return the rule of this name."""
    by_name = {each.name: each for each in (*RULES, KEEP_ROTATION)}
    return by_name[one_of("transfer rule", name, by_name)]


def compose(names: Mapping[str, str]) -> TransferRule:
    """Return the product of rules: each axis takes its powers from the rule that is named for it.

    >>> product = compose({"batch": "tau", "width": "mup"})
    >>> product.name, product.lr, product.weight_decay
    ('batch=tau,width=mup', {'batch': 0.5, 'width': -1.0}, {'batch': 0.5})
    """
    rules = {one_of("axis", axis, AXES): rule_named(name) for axis, name in names.items()}
    for axis, each in rules.items():
        if each.whole_run:
            raise ValueError(f"the transfer rule {each.name!r} is for a change as a whole: --rule {each.name}")
        if axis not in each.speaks_of:
            raise ValueError(
                f"the transfer rule {each.name!r} is not for {axis}. It is for {', '.join(each.speaks_of)}"
            )
    families = sorted({each.family for each in rules.values() if each.family != "any"})
    if len(families) > 1:
        raise ValueError(f"the rules {', '.join(names.values())} are for different optimizers. Take one kind")
    limits = [each.lr_limit for each in rules.values() if each.lr_limit is not None]
    # Changes of β2 and ε follow the batch, and tokens per parameter follow the tokens.
    of_batch = rules.get("batch", rule_named("copy"))
    of_tokens = rules.get("tokens", rule_named("copy"))
    return TransferRule(
        ",".join(f"{axis}={each.name}" for axis, each in rules.items()),
        {axis: each.lr[axis] for axis, each in rules.items() if axis in each.lr},
        {axis: each.weight_decay[axis] for axis, each in rules.items() if axis in each.weight_decay},
        ". ".join(dict.fromkeys(each.source for each in rules.values())),
        speaks_of=tuple(rules),
        family=families[0] if families else "any",
        tokens_per_param=of_tokens.tokens_per_param,
        lr_limit=min(limits, default=None),
        beta2=of_batch.beta2,
        scales_eps=of_batch.scales_eps,
        beta2_range=of_batch.beta2_range,
        parts={axis: each.name for axis, each in rules.items()},
    )


def recommended_rule(family: Family, changed: Collection[str]) -> TransferRule:
    """Return the rule to answer by: that of the axis that changes, or the product of those of all axes that change.

    >>> recommended_rule("adam", ["tokens"]).name, recommended_rule("adam", ["batch", "width"]).name
    ('horizon', 'batch=tau,width=mup')
    """
    names = {axis: FAVOURED[family][axis] for axis in AXES if axis in changed}
    distinct = set(names.values())
    return compose(names) if len(distinct) > 1 else rule_named(distinct.pop() if distinct else "copy")


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
