"""A coarse search for the best learning rate: a grid in half decades that grows until the best is well inside."""

from collections.abc import Callable

# Half decades. The learning rate of place k is 10^(k/2). No search leaves this range.
PLACES = tuple(range(-10, 4))
# Learning rates tried on each side of the best, at least.
MARGIN = 2


def lr_at(place: int) -> float:
    """Return the learning rate of a place, with two digits.

    >>> [lr_at(place) for place in (-5, -4, 0)]
    [0.0032, 0.01, 1.0]
    """
    return float(f"{10 ** (place / 2):.2g}")


def search(start: int, loss: Callable[[int], float]) -> dict[int, float]:
    """Search from `start` until the best place has `MARGIN` others on each side, and return the loss by place.

    >>> sorted(search(-4, lambda place: abs(place + 6)))
    [-8, -7, -6, -5, -4]
    """
    losses = {start: loss(start)}
    while True:
        best = min(losses, key=lambda place: (losses[place], place))
        low, high = min(losses), max(losses)
        if low > max(best - MARGIN, PLACES[0]):
            losses[low - 1] = loss(low - 1)
        elif high < min(best + MARGIN, PLACES[-1]):
            losses[high + 1] = loss(high + 1)
        else:
            return losses
