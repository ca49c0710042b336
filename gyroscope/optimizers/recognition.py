"""Which record an optimizer has: by the top package and the name of its class, never by an ancestor alone.

Nothing is imported to compare with. A subclass has the record of torch's class, or ours, only if it takes its step.
"""

import inspect
import re
from dataclasses import fields
from typing import Any

from gyroscope.optimizers.group_rules import (
    REMEDY,
    lacks,
    refuse_unknown,
    refuse_unsupported,
    rule_by_spec,
    with_cautious_decay,
)
from gyroscope.optimizers.other_libraries import OTHERS, OtherOptimizer
from gyroscope.optimizers.spec import Group, OptimizerSpec
from gyroscope.optimizers.table import SPECS
from gyroscope.theory import AdamW, UpdateRule

Record = OptimizerSpec | OtherOptimizer

KNOWN: tuple[Record, ...] = (*SPECS, *OTHERS)
RECORDS = {(record.package, record.name): record for record in KNOWN}
# Optimizers around another that move the weights more than once per step, so that the other's rule does not hold.
WRAPPERS = ("Lookahead", "SAM", "GSAM", "ScheduleFreeWrapper")
# Names of optimizers and algorithms that orthogonalise whole matrices.
MATRIX_NAME = re.compile(r"muon|dion", re.IGNORECASE)
# Packages whose Muon reshapes every weight to outputs by all else. KellerJordan's and dion's have stacks of matrices.
FLATTENING = ("heavyball", "pytorch_optimizer", "timm")
# Options of a hint, in the order of the rules' arguments.
HINTED = ("lr", "weight_decay", "betas", "momentum")


def record_of(optimizer: object) -> Record | None:
    """Return the record of an optimizer's class, or of the class whose step it takes. None if it is unknown.

    Lightning and others subclass torch's optimizers. Outside torch, a subclass may change more than its step.
    """
    cls = type(optimizer)
    for ancestor in cls.__mro__:
        record = RECORDS.get(_key(ancestor))
        if record is not None:
            inherits = ancestor is cls or (isinstance(record, OptimizerSpec) and takes_step_of(cls, ancestor))
            return record if inherits else None
    return None


def spec_of(optimizer: object) -> OptimizerSpec | None:
    """Return the record of torch's optimizer or ours whose step this one takes, or None."""
    record = record_of(optimizer)
    return record if isinstance(record, OptimizerSpec) else None


def takes_step_of(cls: type[Any], ancestor: type[Any]) -> bool:
    """Return whether a subclass leaves the step of its ancestor as it is, and the methods that the step may call.

    torch writes wrappers of `step` into classes, which do not count. Methods that torch's Optimizer has itself
    (zero_grad, state_dict) are not part of a step.
    """
    if inspect.unwrap(cls.step) is not inspect.unwrap(ancestor.step):
        return False
    below = cls.__mro__[: cls.__mro__.index(ancestor)]
    names = {name for each in below for name in vars(each) if not name.startswith("__") and name != "step"}
    return not any(hasattr(ancestor, name) and not hasattr(ancestor.__mro__[-2], name) for name in names)


def is_known(optimizer: object) -> bool:
    """Return whether an optimizer has a record, or wraps another in a way that changes its rule."""
    return record_of(optimizer) is not None or type(optimizer).__name__ in WRAPPERS


def rotates_matrices(optimizer: object, group: Group) -> bool:
    """Return whether the vector that the optimizer rotates is the whole matrix, in this group.

    It decides what is measured. An unknown optimizer is judged by its name, or by the algorithm that its group names.
    """
    record = record_of(optimizer)
    if isinstance(record, OptimizerSpec):
        return record.whole_matrix
    algorithm = algorithm_of(group)
    if algorithm is not None:
        return MATRIX_NAME.search(algorithm) is not None
    return MATRIX_NAME.search(type(optimizer).__name__) is not None if record is None else record.row.whole_matrix


def flattens_stacks(optimizer: object) -> bool:
    """Return whether the optimizer's Muon takes a tensor of three dimensions as one matrix, not as a stack of them."""
    record = record_of(optimizer)
    return record is not None and record.package in FLATTENING


def algorithm_of(group: Group) -> str | None:
    """Return the algorithm that a group of a mixed optimizer names, in small letters, or None.

    MuonWithAuxAdam writes `use_muon` into its groups, timm `use_fallback`, dion `algorithm`, nanochat `kind`.

    >>> algorithm_of({"use_muon": False}), algorithm_of({"algorithm": "muon"}), algorithm_of({"lr": 0.1})
    ('adamw', 'muon', None)
    """
    if group.get("use_fallback"):
        return "adamw"
    if "use_muon" in group:
        return "muon" if group["use_muon"] else "adamw"
    names = (group.get("algorithm"), group.get("kind"))
    return next((name.lower() for name in names if isinstance(name, str)), None)


def rule_by_record(optimizer: object, group: Group) -> UpdateRule:
    """Return the rule of an optimizer with a group's options, or raise a ValueError with the reason why it has none."""
    record = record_of(optimizer)
    if record is None or record.rule is None:
        raise ValueError(unknown(optimizer, group))
    options = getattr(optimizer, "defaults", {})
    if isinstance(record, OptimizerSpec):
        rule = rule_by_spec(record, group)
        if not record.is_ours:  # ours refuse unknown options themselves
            refuse_unknown(record.name, group, record.known, options)
        return rule
    name = f"{record.package}'s {record.name}"
    for attribute in record.attributes:
        if not hasattr(optimizer, attribute):
            raise ValueError(f"{name} has no attribute {attribute!r}, so it is a version that is not covered: {REMEDY}")
    settings = {**{attribute: getattr(optimizer, attribute) for attribute in record.attributes}, **group}
    for option in record.required:
        if option not in settings:
            raise ValueError(lacks(settings, option))
    refuse_unsupported(name, group)
    refuse_unknown(name, group, (*record.required, *record.known), options)
    return with_cautious_decay(name, record.rule(settings), group)


def unknown(optimizer: object, group: Group) -> str:
    """Return the sentence about an optimizer without a rule, with the line that declares its nearest record."""
    cls = type(optimizer)
    record = record_of(optimizer)
    if isinstance(record, OtherOptimizer):
        return f"{cls.__name__} is not among the known optimizers: {record.row.about}. {_declared(cls, record, group)}"
    known = ", ".join(spec.name for spec in SPECS if spec.rule is not None)
    start = f"{cls.__name__} is not among the known optimizers ({known}, and docs/support.md)."
    nearest = None if record is not None else _nearest(cls)
    hint = ""
    if nearest is not None:
        relation = (
            "inherits from"
            if any(_key(each) == (nearest.package, nearest.name) for each in cls.__mro__)
            else "has the name of"
        )
        hint = f" It {relation} {nearest.package}'s {nearest.name}, whose rule holds only for that step."
    return f"{start}{hint} {_declared(cls, nearest, group)}"


def _declared(cls: type, nearest: Record | None, group: Group) -> str:
    """Return what to do about an unknown class: the line with the rule of its nearest record, or AdamW's."""
    rule: type[UpdateRule] = AdamW
    if nearest is not None and nearest.rule is not None:
        try:
            rule = type(nearest.rule(group))
        except (KeyError, TypeError, ValueError):
            rule = AdamW
    taken = {each.name for each in fields(rule)}  # type: ignore[arg-type]  # every rule is a dataclass
    arguments = ", ".join(f"group[{name!r}]" for name in HINTED if name in taken)
    line = f"rules={{{cls.__name__}: lambda group: {rule.__name__}({arguments})}}"
    return f"It can be measured, not predicted. If it steps as {rule.__name__} does, pass {line}. Else {REMEDY}"


def _nearest(cls: type) -> Record | None:
    """Return the record of the nearest ancestor, or of a class of the same name in another package."""
    ancestors = (RECORDS.get(_key(ancestor)) for ancestor in cls.__mro__)
    namesakes = (record for record in RECORDS.values() if record.name == cls.__name__ and record.rule is not None)
    return next((record for record in (*ancestors, *namesakes) if record is not None), None)


def _key(cls: type) -> tuple[str, str]:
    return cls.__module__.partition(".")[0], cls.__name__
