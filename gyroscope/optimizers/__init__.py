"""Facts about optimizers, without torch: one record per optimizer, in one table that every other package uses."""

from gyroscope.optimizers.group_rules import CAUTIOUS_DECAY as CAUTIOUS_DECAY
from gyroscope.optimizers.group_rules import GroupRuleFunction as GroupRuleFunction
from gyroscope.optimizers.group_rules import Rules as Rules
from gyroscope.optimizers.group_rules import hyperball as hyperball
from gyroscope.optimizers.group_rules import rule_by_spec as rule_by_spec
from gyroscope.optimizers.group_rules import user_rule as user_rule
from gyroscope.optimizers.recognition import flattens_stacks as flattens_stacks
from gyroscope.optimizers.recognition import is_known as is_known
from gyroscope.optimizers.recognition import rotates_matrices as rotates_matrices
from gyroscope.optimizers.recognition import rule_by_record as rule_by_record
from gyroscope.optimizers.recognition import spec_of as spec_of
from gyroscope.optimizers.spec import Group as Group
from gyroscope.optimizers.spec import OptimizerSpec as OptimizerSpec
from gyroscope.optimizers.table import COMMANDS as COMMANDS
from gyroscope.optimizers.table import MOMENTUM_KEYS as MOMENTUM_KEYS
from gyroscope.optimizers.table import PLANS as PLANS
from gyroscope.optimizers.table import SECOND_MOMENT_KEYS as SECOND_MOMENT_KEYS
from gyroscope.optimizers.table import SPECS as SPECS
from gyroscope.optimizers.table import spec_by_name as spec_by_name
