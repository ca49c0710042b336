"""Published rules for moving tuned settings to another scale, as data.

Every rule multiplies the learning rate and the weight decay by powers of the ratios of batch B, tokens D, width m and
depth L. A rule is silent on the axes that it was not made for. `DEFAULTS` fills them, so that rules can
be compared over any change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias, final

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
    source        where the rule was published
    speaks_of     the axes that the rule was made for
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

    @property
    def defaults(self) -> Mapping[str, tuple[float, float]]:
        """The powers of the learning rate and of the weight decay on axes that the rule is silent on."""
        return SPHERE_DEFAULTS if self.family == "sphere" else DEFAULTS


RULES: tuple[TransferRule, ...] = (
    TransferRule("copy", {}, {}, "what people do", speaks_of=AXES, family="any"),
    TransferRule("sqrt-batch", {"batch": 0.5}, {}, "ArchScale pretrain.py, mode default"),
    TransferRule("sde", {"batch": 0.5}, {}, "Malladi et al., arXiv 2205.10287", beta2="linear", scales_eps=True),
    TransferRule(
        "tau",
        {"batch": 0.5},
        {"batch": 0.5, "tokens": -1.0},
        "Wang and Aitchison, arXiv 2405.13698, with the square root of nanochat's base_train.py",
    ),
    TransferRule(
        "tau-wd",
        {},
        {"batch": 1.0, "tokens": -1.0},
        "Bergsma et al., arXiv 2505.13738, weight decay in proportion to the batch",
    ),
    TransferRule(
        "power-lines", {}, {"batch": 1.0, "tokens": -1.0}, "Bergsma et al., arXiv 2505.13738", tokens_per_param=0.527
    ),
    TransferRule(
        "completed",
        {"batch": 0.5, "tokens": -0.5},
        {"batch": 0.5, "tokens": -0.5},
        "Marin completed_adamh.py, with our reading of the decay in arXiv 2512.22382",
    ),
    TransferRule("horizon", {"tokens": -0.32}, {}, "Bjorck et al., arXiv 2409.19913"),
    TransferRule("mup", {"width": -1.0}, {}, "mup MuAdam with decoupled_wd=True"),
    TransferRule(
        "independent", {"width": -1.0}, {"width": 1.0}, "mup MuAdam by default, Kosson et al., arXiv 2510.19093"
    ),
    TransferRule("fan", {"width": -1.0}, {"width": 0.5}, "Fan et al., arXiv 2510.15262"),
    TransferRule(
        "hyperp",
        {"batch": 0.5, "tokens": -0.32, "depth": -0.5},
        {},
        "ArchScale pretrain.py, arXiv 2603.28743",
        family="sphere",
    ),
    TransferRule(
        "marin-adamh",
        {"batch": 0.5, "tokens": -0.30},
        {},
        "Marin completed_adamh.py",
        family="sphere",
        lr_limit=0.01,
        beta2="power",
        beta2_range=(0.9, 0.9999),
    ),
    TransferRule(
        "marin-muonh",
        {"batch": 0.5, "tokens": -0.346, "width": -0.345},
        {},
        "Marin moe_hero_ep/heuristic.py",
        family="sphere",
    ),
    TransferRule("linear", {"batch": 1.0}, {}, "Goyal et al., arXiv 1706.02677, SMD appendix C.3", family="sgd"),
)
