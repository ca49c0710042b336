"""What a user does: tune an optimizer, read what to change, change it, and train again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from gyroscope_lab.advice._situations import NETWORKS, OPTIMIZERS, SHARED, SITUATIONS, Settings, applied
from gyroscope_lab.advice._store import Record, key_text
from gyroscope_lab.advice._training import Bench

# Seed that chooses learning rates, and the first seed of the others.
TUNING_SEED = 900
# Factor between neighbouring learning rates, and the most of them that are tried for one optimizer.
NEIGHBOUR = 10**0.5
MAX_TRIED = 8
# Rounds of reading and changing.
ROUNDS = 3
Report = Callable[[float], None]


@final
@dataclass(frozen=True)
class Round:
    """A training, and what was said about it."""

    loss: float
    accuracy: float
    summary: Sequence[str]
    changes: Record


def tuned(bench: Bench, half: str, network: str, optimizer: str) -> Settings:
    """Return the settings of an optimizer at the learning rate with the lowest loss on the tuning seed."""
    base = OPTIMIZERS[optimizer]
    settings = {**SHARED, **NETWORKS[half][network], **base.settings}

    def loss(place: int) -> float:
        return float(bench.loss({**settings, "lr": _lr(base.lr, place), "seed": TUNING_SEED})["loss"])

    return {**settings, "lr": _lr(base.lr, lowest_place(loss))}


def lowest_place(loss: Callable[[int], float]) -> int:
    """Return the whole number with the lowest loss, searched from 0 to both sides.

    >>> lowest_place(lambda place: abs(place + 2))
    -2
    """
    known = {0: loss(0)}
    best = 0
    while len(known) < MAX_TRIED:
        beside = [place for place in (best - 1, best + 1) if place not in known]
        if not beside:
            break
        known |= {place: loss(place) for place in beside}
        best = min(known, key=lambda place: known[place])
    return best


def _lr(start: float, place: int) -> float:
    return float(f"{start * NEIGHBOUR**place:.3g}")


def settings_of(bench: Bench, half: str, network: str, situation: str) -> Settings:
    """Return the settings of a situation on a network."""
    each = SITUATIONS[situation]
    return each.change(tuned(bench, half, network, each.optimizer))


def follow(bench: Bench, settings: Settings, planted: str, report: Report = lambda _: None) -> list[Round]:
    """Train, apply what the findings say to the letter, and train again, until they name no change that is new."""
    rounds: list[Round] = []
    seen: set[str] = set()
    while key_text(settings) not in seen and len(rounds) <= ROUNDS:
        seen.add(key_text(settings))
        scores = bench.loss(settings, planted, report)
        said: dict[str, Any] = bench.advice(settings, planted)
        rounds.append(Round(scores["loss"], scores["accuracy"], said["summary"], said["changes"]))
        settings = applied(settings, said["changes"])
    return rounds
