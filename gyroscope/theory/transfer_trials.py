"""What our trials of transfer rules have tried, as data: docs/transfer.md describes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import final

# Weights of the largest network on trial, in words.
LARGEST_NETWORK = "2M weights"


@final
@dataclass(frozen=True)
class Tried:
    """The trials of one axis, all with AdamW.

    smallest, largest  factors of the axis between which rules were tried
    result     how the favoured rule ended against others, as a sentence
    caution    what limits the support in a larger run, as a sentence
    limits_joint_changes  whether the caution matters beside other changes too
    """

    smallest: float
    largest: float
    result: str
    caution: str
    limits_joint_changes: bool = True


TRIED: Mapping[str, Tried] = MappingProxyType(
    {
        "batch": Tried(
            0.25,
            4.0,
            "On average over four networks copied settings ended 0.013 nats above tau, linear 0.012, sqrt-batch 0.003.",
            "Keep the batch far below the critical one (ours: at most 0.05 of it).",
        ),
        "tokens": Tried(
            0.25,
            4.0,
            "On average over four networks copied settings ended 0.01 nats above horizon, tau 0.015.",
            "The support of horizon comes from shorter runs.",
        ),
        "width": Tried(
            1.0,
            8.0,
            "On a GPT fan ended 0.006 nats above mup, independent 0.019, copied settings 0.32.",
            "At 4 and 8 times the width twice this lr was better by 0.01 and 0.026, which is undecided.",
            limits_joint_changes=False,
        ),
    }
)
