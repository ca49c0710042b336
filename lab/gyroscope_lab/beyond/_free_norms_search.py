"""The search for the best settings of an arm: a coarse grid, then neighbour by neighbour until none is clearly better.

The grid has no edge within the limits: neighbours of the best point are tried wherever it is. So an arm whose best is
at the edge of the coarse grid is extended, and the bounds are the same for all arms.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from gyroscope_lab.beyond._free_norms_arms import Point

# Weight decays of all grids. Other settings are a factor apart.
DECAYS = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
FACTORS = {"lr": 2.0, "others": 4.0, "warmup": 2.0}
MOST_OTHERS = 64.0
MOST_WARMUP = 0.4
# Nats by which a neighbour must be better. Means of two seeds are no more precise. Without it, AdamW's first search
# halved its weight decay again and again for a gain of 0.001.
LEAST_GAIN = 0.003
# Largest decay of one step.
MOST_DECAY = 0.3


@dataclass(frozen=True)
class Search:
    """The coarse grid of an optimizer, and how the best point moves from there.

    lrs, weight_decays  all pairs are tried first
    others              rate of the other parameters in the coarse grid
    axes                settings of which neighbours are tried
    stride              places between neighbours in lr and weight decay
    moves               most times that the best point moves
    """

    lrs: tuple[float, ...]
    weight_decays: tuple[float, ...]
    others: float = 4.0
    axes: tuple[str, ...] = ("lr", "weight_decay", "others")
    stride: int = 1
    moves: int = 8

    def coarse(self) -> list[Point]:
        """Return the points that are all tried first."""
        return [Point(lr, decay, self.others) for lr, decay in product(self.lrs, self.weight_decays)]

    def neighbours(self, point: Point) -> list[Point | None]:
        """Return the points next to a point, two for each axis. None is beyond the limits.

        >>> search = Search((2e-3, 8e-3), (0.1, 1.0), axes=("lr", "weight_decay"))
        >>> [(near.lr, near.weight_decay) for near in search.neighbours(Point(2e-3, 0.3))]
        [(0.001, 0.3), (0.004, 0.3), (0.002, 0.1), (0.002, 1.0)]
        """
        return [_moved(point, axis, sign * self._places(axis)) for axis in self.axes for sign in (-1, 1)]

    def best(self, loss: Callable[[Point], float]) -> Point:
        """Return the point with the lowest loss, as far as the search comes.

        >>> Search((1e-3, 4e-3), (0.1, 1.0)).best(lambda point: abs(point.lr - 0.032) + abs(point.others - 1))
        Point(lr=0.032, weight_decay=0.1, others=1.0, warmup=0.05)
        """
        best = min(self.coarse(), key=loss)
        for _ in range(self.moves):
            near = [point for point in self.neighbours(best) if point is not None]
            next_best = min([best, *near], key=loss)
            if loss(next_best) > loss(best) - LEAST_GAIN:
                break
            best = next_best
        return best

    def _places(self, axis: str) -> int:
        return self.stride if axis in ("lr", "weight_decay") else 1


def _moved(point: Point, axis: str, places: int) -> Point | None:
    """Return the point some places along an axis, or None if it is beyond the limits."""
    if axis == "weight_decay":
        place = DECAYS.index(point.weight_decay) + places
        if not 0 <= place < len(DECAYS):
            return None
        moved = point._replace(weight_decay=DECAYS[place])
    else:
        moved = point._replace(**{axis: getattr(point, axis) * FACTORS[axis] ** places})
    inside = (
        moved.lr * moved.weight_decay <= MOST_DECAY
        and 1 / MOST_OTHERS <= moved.others <= MOST_OTHERS
        and moved.warmup <= MOST_WARMUP
    )
    return moved if inside else None


ADAMW_SEARCH = Search((2e-3, 8e-3, 3.2e-2), (0.1, 1.0))
LONG_SEARCH = Search((2e-3, 8e-3), (0.1, 1.0), moves=3)
SGD_SEARCH = Search((0.025, 0.1, 0.4), (3e-4, 3e-3, 0.03), others=1.0, axes=("lr", "weight_decay"), stride=2)
LION_SEARCH = Search((2.5e-4, 1e-3, 4e-3), (0.1, 1.0, 10.0), others=1.0, axes=("lr", "weight_decay"), stride=2)
