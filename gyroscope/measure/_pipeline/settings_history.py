"""The settings of parameter groups, read at every step."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any, NamedTuple, final

from torch import Tensor
from torch.optim import Optimizer


class GroupSettings(NamedTuple):
    """The settings of a parameter group in a step. Betas are (momentum, NaN) if there is one average."""

    lr: Any
    weight_decay: Any
    beta1: Any
    beta2: Any


# Settings of every group (None if it was not stepped), and the number of consecutive steps with these settings.
SettingsHistory = list[tuple[list[GroupSettings | None], int]]


def frozen(value: Any) -> Any:
    """Return a number that will not change: the value of a tensor on the CPU, a copy of one on a device."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone() if value.device.type != "cpu" or value.numel() != 1 else value.item()


def frozen_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group as they are now. Numbers on a device are copied without waiting for it."""
    options = {key: frozen(value) for key, value in group.items() if key not in ("params", "param_names")}
    # The rotation of MuonH depends on them, and the parameters themselves may change before the sample is judged.
    return {**options, "shapes": tuple(tuple(p.shape) for p in group["params"])}


def settings_of(group: Mapping[str, Any]) -> GroupSettings:
    """Return the settings of a group. A missing one, or one that the optimizer chooses itself, is NaN.

    >>> settings_of({"lr": 0.1, "momentum": 0.9})
    GroupSettings(lr=0.1, weight_decay=0.0, beta1=0.9, beta2=nan)
    """
    betas = group.get("betas") or (group.get("momentum"),)
    if isinstance(betas[0], tuple | list):  # k-Adam with a pair for each stage: those of the first
        betas = betas[0]
    options = (group.get("lr"), group.get("weight_decay", 0.0), *(*betas, None)[:2])
    return GroupSettings(*(nan if value is None else frozen(value) for value in options))


@final
class SettingsLog:
    """Settings and options of all groups, read when they are stepped, before a scheduler changes them."""

    def __init__(self) -> None:
        self.now: dict[int, GroupSettings] = {}
        """Settings in the step that is being taken."""
        self.options: dict[int, dict[str, Any]] = {}
        """Options of each group as they were when it was stepped last in a sample."""
        self.history: SettingsHistory = []
        """Settings of the steps since the last sample that was handed over."""

    def read(self, numbers: Sequence[int], optimizer: Optimizer, sampled: bool, ends: bool) -> None:
        """Read the groups of an optimizer. `ends`: it is the last one in the step of the run."""
        # Group numbers as of the last sample, because a group that was added since has no layers yet.
        for number, group in zip(numbers, optimizer.param_groups, strict=False):
            self.now[number] = settings_of(group)
            if sampled:
                self.options[number] = frozen_options(group)
        if ends:
            self.end_step()

    def end_step(self) -> None:
        """Append the settings of a step to the history."""
        groups = [self.now.get(number) for number in range(1 + max(self.now, default=-1))]
        # Settings on a device count as different, because comparing them would wait for it.
        comparable = not any(isinstance(value, Tensor) for group in groups if group is not None for value in group)
        if comparable and self.history and self.history[-1][0] == groups:
            self.history[-1] = (groups, self.history[-1][1] + 1)
        else:
            self.history.append((groups, 1))
        self.now = {}
