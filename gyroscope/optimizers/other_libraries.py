"""The optimizers of other libraries: one line per class, found by its top package and name.

The rotation of every optimizer with a rule is compared with it on noise (docs/support.md). Nothing is imported.
"""

from collections.abc import Iterator
from typing import NamedTuple

from gyroscope.optimizers.group_rules import (
    REMEDY,
    GroupRuleFunction,
    adafactor,
    betas,
    number,
    rates,
    torch_muon,
    with_betas,
)
from gyroscope.optimizers.spec import Group
from gyroscope.theory import AdamW, Lion, Rule, UpdateRule


class Row(NamedTuple):
    """A class of another library.

    about: its rule in words, or the reason why it has none.
    rule: from its settings to the theory's rule. Settings are the options of the group and `attributes`.
    required: options without which there is no rule. Libraries have different defaults, so none is guessed.
    attributes: those of the optimizer that the rule reads.
    """

    name: str
    about: str
    rule: GroupRuleFunction | None = None
    required: str = ""
    attributes: str = ""
    whole_matrix: bool = False


class OtherOptimizer(NamedTuple):
    """A row with its library. `known` are options that do not change the rule, or that it covers."""

    package: str
    row: Row
    known: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.row.name

    @property
    def rule(self) -> GroupRuleFunction | None:
        """From the settings to the theory's rule, None if there is none."""
        return self.row.rule

    @property
    def required(self) -> tuple[str, ...]:
        """Settings without which there is no rule."""
        return tuple(self.row.required.split())

    @property
    def attributes(self) -> tuple[str, ...]:
        """Settings that are attributes of the optimizer."""
        return tuple(self.row.attributes.split())


def library(package: str, known: str, *rows: Row) -> Iterator[OtherOptimizer]:
    """Yield the records of a library, with the options that all its classes may have."""
    return (OtherOptimizer(package, row, tuple(known.split())) for row in rows)


def _by_law(group: Group) -> UpdateRule:
    """Return the one law for an average by β1 of updates of unknown size."""
    return _law(group, betas(group)[0])


def _law(group: Group, beta: float) -> UpdateRule:
    lr, weight_decay = rates(group)
    return Rule(lr * weight_decay, (1 + beta) / (1 - beta))


def _decoupled(rule: GroupRuleFunction) -> GroupRuleFunction:
    """Return the rule of a class of pytorch_optimizer, which adds weight decay to the gradient unless told not to."""

    def decoupled(group: Group) -> UpdateRule:
        if not group["weight_decouple"] and group["weight_decay"]:
            raise ValueError(
                "weight_decouple=False is not covered, because L2 is part of its gradient: set weight_decouple=True, "
                f"or {REMEDY}"
            )
        return rule(group)

    return decoupled


def _sign(group: Group, option: str) -> UpdateRule:
    beta = number(group, option)
    return Lion(*rates(group), (beta, beta))


def _quasi_hyperbolic(group: Group) -> UpdateRule:
    """Return QHAdam's law: u = (1-ν)·g + ν·m, so that τ = (Σc)²/Σc² with Σc = 1."""
    lr, weight_decay = rates(group)
    beta = betas(group)[0]
    nu = float(group["nus"][0])
    squares = (1 - nu) ** 2 + 2 * nu * (1 - nu) * (1 - beta) + nu**2 * (1 - beta) / (1 + beta)
    return Rule(lr * weight_decay, 1 / squares)


def _prodigy(group: Group) -> UpdateRule:
    lr, weight_decay = rates(group)
    return AdamW(lr * number(group, "d"), weight_decay, betas(group))


def _aux_muon(group: Group) -> UpdateRule:
    """Return the rule of a group of MuonWithAuxAdam, whose Muon has torch's defaults."""
    return torch_muon(group) if group["use_muon"] else AdamW(*rates(group), betas(group))


LAMBDA = "lr weight_decay"
ADAM = f"{LAMBDA} betas"
SWITCHED = f"{ADAM} weight_decouple"
AS_ADAMW = "AdamW"
AS_MUON = "Muon"
ONE_BETA = "Lion with one β"
BY_LAW = "rotation of AdamW, norm unknown"
ADAMW = with_betas(AdamW)
LION = with_betas(Lion)

OTHERS = (
    *library(
        "pytorch_optimizer",
        "initial_accumulator partial r d d0 d_max d_coef growth_rate bias_correction beta3 kahan_sum "
        "precondition_frequency max_precondition_dim merge_dims correct_bias shampoo_beta",
        Row("Lion", "Lion", _decoupled(LION), SWITCHED),
        Row("RAdam", AS_ADAMW, _decoupled(ADAMW), SWITCHED),
        Row("StableAdamW", AS_ADAMW, _decoupled(ADAMW), SWITCHED),
        Row("Prodigy", "AdamW at lr·d, with the current d", _decoupled(_prodigy), f"{SWITCHED} d"),
        Row("Tiger", ONE_BETA, _decoupled(lambda group: _sign(group, "beta")), f"{LAMBDA} weight_decouple beta"),
        Row(
            "SignSGD",
            ONE_BETA,
            _decoupled(lambda group: _sign(group, "momentum")),
            f"{LAMBDA} weight_decouple momentum",
        ),
        Row("AdaBelief", BY_LAW, _decoupled(_by_law), SWITCHED),
        Row("AdaNorm", BY_LAW, _decoupled(_by_law), SWITCHED),
        Row("ADOPT", BY_LAW, _decoupled(_by_law), SWITCHED),
        Row("LaProp", BY_LAW, _decoupled(_by_law), SWITCHED),
        Row("PAdam", BY_LAW, _decoupled(_by_law), SWITCHED),
        Row("SOAP", BY_LAW, _by_law, ADAM),
        Row("Yogi", BY_LAW, _decoupled(_by_law), SWITCHED),
        Row("QHAdam", "one law, τ of g and momentum mixed", _decoupled(_quasi_hyperbolic), f"{SWITCHED} nus"),
        Row(
            "SGDW",
            "one law, norm unknown",
            _decoupled(lambda group: _law(group, number(group, "momentum"))),
            f"{LAMBDA} weight_decouple momentum",
        ),
    ),
    *library(
        "transformers",
        "decay_rate clip_threshold beta1 relative_step scale_parameter warmup_init",
        Row("Adafactor", "Adafactor", adafactor, f"{LAMBDA} scale_parameter"),
    ),
    *library(
        "muon",  # KellerJordan's
        "momentum betas",
        Row("Muon", AS_MUON, torch_muon, f"{LAMBDA} momentum", whole_matrix=True),
        Row("SingleDeviceMuon", AS_MUON, torch_muon, f"{LAMBDA} momentum", whole_matrix=True),
        Row("MuonWithAuxAdam", "Muon and AdamW", _aux_muon, f"{LAMBDA} use_muon", whole_matrix=True),
        Row("SingleDeviceMuonWithAuxAdam", "Muon and AdamW", _aux_muon, f"{LAMBDA} use_muon", whole_matrix=True),
    ),
)
