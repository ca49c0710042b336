"""From the settings of other libraries' optimizers to the theory's rule. Each library has spellings of its own."""

from collections.abc import Callable
from typing import Any

from gyroscope.optimizers.group_rules import (
    REMEDY,
    GroupRuleFunction,
    betas,
    hyperball,
    lacks,
    number,
    rates,
    shapes_of,
    torch_muon,
    with_betas,
)
from gyroscope.optimizers.group_rules import sgd as torch_sgd
from gyroscope.optimizers.spec import Group
from gyroscope.theory import SGDM, Adafactor, AdamL2, AdamW, Hyperball, Lion, Muon, NAdam, NAdamL2, Rule, UpdateRule
from gyroscope.theory.rules.muon import NEWTON_SCHULZ_STEPS

adamw = with_betas(AdamW)
adam_l2 = with_betas(AdamL2)
lion = with_betas(Lion)


def refuse(problem: str) -> ValueError:
    """Return the error about a setting that no rule covers."""
    return ValueError(f"{problem} is not covered: {REMEDY}")


def switched(option: str, on: GroupRuleFunction, off: GroupRuleFunction | None = None) -> GroupRuleFunction:
    """Return the function that chooses a rule by an option. Without a second one, weight decay needs the first."""

    def chosen(group: Group) -> UpdateRule:
        if group[option]:
            return on(group)
        if off is None:
            if group["weight_decay"]:
                raise ValueError(
                    f"{option}={group[option]!r} is not covered, because L2 is part of its gradient: set "
                    f"{option}=True, or {REMEDY}"
                )
            return on(group)
        return off(group)

    return chosen


def law(option: str) -> GroupRuleFunction:
    """Return the one law for momentum with that option, and updates of a size that depends on the gradient."""
    return lambda group: _law(group, number(group, option))


def by_law(group: Group) -> UpdateRule:
    """Return the one law for an average by β1 of updates of unknown size."""
    return _law(group, betas(group)[0])


def _law(group: Group, beta: float) -> UpdateRule:
    lr, weight_decay = rates(group)
    return Rule(lr * weight_decay, (1 + beta) / (1 - beta))


def sign(option: str) -> GroupRuleFunction:
    """Return Lion with one β, the option of that name."""
    return lambda group: Lion(*rates(group), (number(group, option),) * 2)


def quasi_hyperbolic(group: Group) -> UpdateRule:
    """Return QHAdam's law: u = (1-ν)·g + ν·m, so that τ = (Σc)²/Σc² with Σc = 1."""
    lr, weight_decay = rates(group)
    beta = betas(group)[0]
    nu = float(group["nus"][0])
    squares = (1 - nu) ** 2 + 2 * nu * (1 - nu) * (1 - beta) + nu**2 * (1 - beta) / (1 + beta)
    return Rule(lr * weight_decay, 1 / squares)


def times_d(rule: Callable[..., UpdateRule]) -> GroupRuleFunction:
    """Return Prodigy's rule, at lr times its current d."""
    return lambda group: rule(number(group, "lr") * number(group, "d"), number(group, "weight_decay"), betas(group))


def nesterov_law(group: Group) -> UpdateRule:
    """Return the law of decoupled SGD, plain or with Nesterov's momentum, which has SGDM's correlation."""
    lr, weight_decay = rates(group)
    known = SGDM(lr, weight_decay, number(group, "momentum"), nesterov=bool(group["nesterov"]))
    return Rule(lr * weight_decay, float(known.correlation(None).time()))  # type: ignore[arg-type]


def nadam_without_ramp(group: Group) -> UpdateRule:
    """Return NAdam whose momentum is β1 from the first step."""
    return NAdam(*rates(group), betas(group))


def bitsandbytes_sgd(group: Group) -> UpdateRule:
    """Return SGDM. The first of its betas is the momentum, and the second does nothing."""
    return SGDM(*rates(group), betas(group)[0])


def optimi_sgd(group: Group) -> UpdateRule:
    """Return SGDM, or the law of decoupled SGD. Dampening multiplies by 1 - momentum."""
    momentum = number(group, "momentum")
    if group["decouple_wd"]:
        return _law(group, momentum)
    lr, weight_decay = rates(group)
    return SGDM(lr * (1 - momentum) if group["dampening"] else lr, weight_decay, momentum)


def lion_pytorch(group: Group) -> UpdateRule:
    """Return Lion. With `decoupled_wd` the decay is divided by the learning rate of the start."""
    lr, weight_decay = rates(group)
    return Lion(lr, weight_decay / float(group["_init_lr"]) if group["decoupled_wd"] else weight_decay, betas(group))


def heavyball_muon(group: Group) -> UpdateRule:
    """Return Muon with quintic coefficients and β1 for momentum. Its look-ahead is u = g + m, half of each."""
    if group["heavyball_momentum"]:
        raise refuse("heavyball_momentum=True")
    beta = betas(group)[0]
    return Muon(*rates(group), beta, bool(group["nesterov"]), ns_coefficients="quintic", nesterov_momentum=0.5)


def heavyball_adamc(group: Group) -> UpdateRule:
    """Return AdamW with decay lr²·λ/max_lr."""
    lr, weight_decay = rates(group)
    return AdamW(lr, weight_decay * lr / number(group, "max_lr"), betas(group), corrected_decay=True)


def heavyball_nadam(group: Group) -> UpdateRule:
    """Return NAdam or NAdamL2, with torch's ramp."""
    rule = NAdam if group["decoupled_weight_decay"] or not group["weight_decay"] else NAdamL2
    return rule(*rates(group), betas(group), momentum_decay=number(group, "momentum_decay"))


def heavyball_hyperball(group: Group) -> UpdateRule:
    """Return Hyperball of g/√v, without a momentum."""
    if group["weight_decay"]:
        raise refuse(f"weight_decay={group['weight_decay']!r} inside Hyperball")
    return Hyperball(number(group, "lr"), momentum=0.0)


def apex_sgd(group: Group) -> UpdateRule:
    """Return SGDM, unless L2 is added behind the momentum."""
    if group["wd_after_momentum"] and group["weight_decay"]:
        raise refuse("wd_after_momentum=True")
    return torch_sgd(group)


def olmo_adamw(group: Group) -> UpdateRule:
    """Return AdamW. Without `stepfix` the bias corrections of the first step are kept: step and norm grow by k."""
    if group["stepfix"]:
        return adamw(group)
    lr, weight_decay = rates(group)
    beta1, beta2 = betas(group)
    k = (1 - beta2) ** 0.5 / (1 - beta1)
    return AdamW(lr * k, weight_decay / k, (beta1, beta2))


def aux_muon(group: Group) -> UpdateRule:
    """Return the rule of a group of MuonWithAuxAdam, whose Muon has torch's defaults."""
    return torch_muon(group) if group["use_muon"] else adamw(group)


def pytorch_optimizer_muon(group: Group) -> UpdateRule:
    """Return the rule of a group of pytorch_optimizer's Muon."""
    if not group["use_muon"]:
        return adamw(group)
    if group.get("ns_method", "newton_schulz") != "newton_schulz":
        raise refuse(f"ns_method={group['ns_method']!r}")
    iterations = tuple(tuple(triple) for triple in group["ns_coeffs"])
    iterations = (iterations * int(group["ns_steps"]))[: int(group["ns_steps"])]
    adjustment: Any = "match_rms_adamw" if group["use_adjusted_lr"] else "original"
    return Muon(
        *rates(group),
        number(group, "momentum"),
        bool(group["nesterov"]),
        adjustment,
        ns_coefficients=iterations,
    )


def timm_muon(group: Group) -> UpdateRule:
    """Return the rule of a group of timm's Muon, whose fallback is AdamW, or NAdamW with Nesterov's momentum."""
    if group.get("use_fallback") or not group.get("use_muon", True):
        lr = number(group, "lr") * number(group, "fallback_lr_scale")
        rule = NAdam if group["nesterov"] else AdamW
        return rule(lr, number(group, "weight_decay"), betas(group))
    for option, covered in (("algo", "muon"), ("conv_mode", "flatten"), ("ns_steps", NEWTON_SCHULZ_STEPS)):
        if group[option] != covered:
            raise refuse(f"timm's Muon with {option}={group[option]!r}")
    named = group["ns_coefficients"]
    named = "polar_express" if named == "polar_express_safer" else named
    if not isinstance(named, str):
        raise refuse(f"timm's Muon with ns_coefficients={named!r}")
    adjustment: Any = group["adjust_lr_fn"] or "none"
    return Muon(*rates(group), number(group, "momentum"), bool(group["nesterov"]), adjustment, ns_coefficients=named)


def torchtitan_muon(group: Group) -> UpdateRule:
    """Return torch's Muon, whose third adjustment is sqrt(rows/columns) here."""
    if group["adjust_lr_fn"] == "spectral_unclamped":
        group = {**group, "adjust_lr_fn": "spectral_norm"}
    return torch_muon(group)


EMERGING_SCALES = {"spectral": "spectral", "shape_scaling": "original", "unit_rms_norm": "spectral_norm"}
EMERGING_COEFFICIENTS = {"simple": "original", "quintic": "quintic", "polar_express": "polar_express"}


def emerging_muon(group: Group, hook: str = "NoOpWeightUpdateHook") -> UpdateRule:
    """Return Muon with the attributes of Emerging-Optimizers' Muon, unless it has another weight-update hook."""
    steps = int(group["num_ns_steps"])
    for setting, is_covered in (
        (f"weight_decay_method={group['weight_decay_method']!r}", group["weight_decay_method"] == "decoupled"),
        (f"coefficient_type={group['coefficient_type']!r}", group["coefficient_type"] in EMERGING_COEFFICIENTS),
        (f"num_ns_steps={steps}", steps == NEWTON_SCHULZ_STEPS),
        (
            f"the hook {type(group['_weight_update_hook']).__name__}",
            type(group["_weight_update_hook"]).__name__ == hook,
        ),
    ):
        if not is_covered:
            raise refuse(f"Emerging-Optimizers' Muon with {setting}")
    factor = float(group["extra_scale_factor"])
    lr, weight_decay = rates(group)
    adjustment: Any = EMERGING_SCALES[group["scale_mode"]]
    coefficients = EMERGING_COEFFICIENTS[group["coefficient_type"]]
    momentum = number(group, "momentum")
    return Muon(
        lr * factor, weight_decay / factor, momentum, bool(group["nesterov"]), adjustment, ns_coefficients=coefficients
    )


def emerging_hyperball(group: Group) -> UpdateRule:
    """Return Hyperball with the correlation of its Muon. The decay before a step shortens the weight, not the step."""
    muon = emerging_muon(group, hook="HyperballHook")
    lr, weight_decay = rates(group)
    return hyperball({**group, "lr": lr / (1 - lr * weight_decay)}, muon)


DION_ADJUSTMENTS = {"rms_norm": "match_rms_adamw", "spectral_norm": "spectral_norm", None: "none"}
DION_COEFFICIENTS = {
    "polar_express": "polar_express",
    "polar_express_triton": "polar_express",
    "zeropower_via_newtonschulz5": "quintic",
    "newton_schulz_triton": "quintic",
}


def dion(group: Group) -> UpdateRule:
    """Return the rule of a group of dion's classes, by the algorithm that it names. NorMuon keeps Muon's norm."""
    algorithm = group["algorithm"]
    if algorithm in ("adamw", "lion"):
        return (AdamW if algorithm == "adamw" else Lion)(*rates(group), betas(group))
    if algorithm not in ("muon", "normuon"):
        raise refuse(f"algorithm={algorithm!r}, whose updates have a low rank and an error feedback,")
    function = getattr(group["_newton_schulz_func"], "__name__", "?")
    if function not in DION_COEFFICIENTS:
        raise refuse(f"newton_schulz_func={function}")
    adjustment: Any = DION_ADJUSTMENTS[group["adjust_lr"]]
    coefficients = DION_COEFFICIENTS[function]
    return Muon(*rates(group), number(group, "mu"), bool(group["nesterov"]), adjustment, ns_coefficients=coefficients)


def nanochat(group: Group) -> UpdateRule:
    """Return the rule of a group of nanochat's MuonAdamW. Its Muon multiplies step and decay by the adjustment.

    The updates have the norm of an orthogonal matrix, and only entries that they shrink decay.
    """
    if group["kind"] == "adamw":
        return adamw(group)
    if group["kind"] != "muon":
        raise refuse(f"kind={group['kind']!r}")
    shapes = shapes_of(group)
    if not shapes:
        raise ValueError(lacks(group, "params"))
    rows, columns = shapes[0][-2:]
    lr, weight_decay = rates(group)
    adjusted = lr * max(1, rows / columns) ** 0.5
    return Muon(
        adjusted,
        weight_decay,
        number(group, "momentum"),
        True,
        "none",
        cautious_decay=True,
        ns_coefficients="polar_express",
    )


def adafactor(group: Group) -> UpdateRule:
    """Return the Adafactor of transformers and timm, which has the option `scale_parameter`."""
    scaled = bool(group["scale_parameter"])
    uncovered = {
        "relative_step=True: lr then follows the number of steps alone": group.get("relative_step"),
        "lr=None: lr then follows the number of steps alone": group.get("lr") is None,
        "beta1 or betas: updates then have a momentum": group.get("beta1") or group.get("betas"),
        "weight_decay beside scale_parameter=True: it then follows the norm": scaled and group.get("weight_decay"),
    }
    for setting, is_set in uncovered.items():
        if is_set:
            raise ValueError(f"Adafactor is not covered with {setting}. Use torch.optim.Adafactor, or {REMEDY}")
    if not isinstance(group.get("eps"), tuple | list):
        raise ValueError(lacks(group, "eps, a pair"))
    threshold = max(number(group, "clip_threshold"), 1.0)
    decay = number(group, "decay_rate")
    return Adafactor(*rates(group), decay, threshold, float(group["eps"][1]), scale_parameter=scaled, capped=False)
