"""Facts about optimizers, without torch: one record per optimizer, one table that every other room reads."""

from gyroscope.optimizers.group_rules import (
    CAUTIOUS_DECAY,
    GroupRuleFunction,
    Rules,
    hyperball,
    rule_by_spec,
    user_rule,
)
from gyroscope.optimizers.spec import FileSigns, Group, OptimizerSpec, PlanChoice
from gyroscope.optimizers.table import (
    COMMANDS,
    MOMENTUM_KEYS,
    PLANS,
    SECOND_MOMENT_KEYS,
    SPECS,
    spec_by_algorithm,
    spec_by_name,
    spec_of,
)

__all__ = [
    "CAUTIOUS_DECAY",
    "COMMANDS",
    "MOMENTUM_KEYS",
    "PLANS",
    "SECOND_MOMENT_KEYS",
    "SPECS",
    "FileSigns",
    "Group",
    "GroupRuleFunction",
    "OptimizerSpec",
    "PlanChoice",
    "Rules",
    "hyperball",
    "rule_by_spec",
    "spec_by_algorithm",
    "spec_by_name",
    "spec_of",
    "user_rule",
]
