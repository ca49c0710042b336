"""A run that is followed for all who look at it: read once, handed to many."""

import threading
import time
from pathlib import Path
from typing import NamedTuple, final

import numpy as np

from gyroscope._json import dumps
from gyroscope.advice.history import layer_histories
from gyroscope.render.gather_runs import OVER_LAYERS, check, gather_run, over_layers, spoken
from gyroscope.render.layer_data import distributions_at, spread, summary
from gyroscope.render.run_data import LAYER_SERIES, Array, Distribution, RunData
from gyroscope.render.theory_panels import bound_of, update_bound
from gyroscope.store import Run, RunError, open_run
from gyroscope.store.database import FILE

MOST = 1000
"""Samples that a live page shows at most."""
PAUSE = 0.5
"""Seconds between readings of a file, however many viewers ask."""
WORDS = 3.0
"""Seconds between verdicts, at least; and at most a tenth of the time goes into them."""
GROUP_SERIES = ("lr", "weight_decay")


class At(NamedTuple):
    """How far a viewer has come: which data he extends, how many samples they have, and which verdicts he has read."""

    generation: int
    samples: int
    words: int


@final
class Followed:
    """A run that grows by samples only: its file, layers and stride stay what they are."""

    def __init__(self, run: Run, identity: tuple[int, int]) -> None:
        self.run, self.identity = run, identity
        self.stride, self.layers, self.begun = run.stride, run.layers, run.steps
        self.bound = bound_of(layer_histories(run))
        groups = [run.layer(name).group for name in self.layers]
        self.firsts = [groups.index(group) if group in groups else None for group in range(max(groups, default=-1) + 1)]
        self._blocks: list[dict[str, Array]] = []

    def goes_on(self) -> bool:
        """Read on; False where what was read is not part of the run any more."""
        before, new = self.run.total, self.run.refresh()
        if self.run.total != before + new:  # the run was resumed, and steps were measured again
            return False
        if self.run.stride != self.stride or self.run.layers != self.layers:
            return False
        steps = self.run.steps
        if not np.array_equal(steps[: len(self.begun)], self.begun):
            return False
        known = len(self.begun) + len(self._blocks)
        self._blocks += [values_at(self.run, int(step)) for step in steps[known:]]
        return True

    def since(self, sample: int) -> dict[str, object]:
        """Arrays of the samples from one on; those of the layers one after the other, in one long array by name."""
        blocks = self._blocks[sample - len(self.begun) :]
        stacked = {name: np.array([block[name] for block in blocks]).reshape(len(blocks), -1).T for name in blocks[0]}
        steps = self.run.steps[sample:]
        groups = [{} if i is None else {name: stacked[name][i] for name in GROUP_SERIES} for i in self.firsts]
        return {
            "steps": steps,
            "series": {**over_layers(stacked), "update_bound": update_bound(self.bound, steps)},
            "groups": groups,
            "layers": {name: stacked[name].ravel() for name in LAYER_SERIES},
        }

    def close(self) -> None:
        """Let go of the file."""
        self.run.close()


def values_at(run: Run, step: int) -> dict[str, Array]:
    """Every series that a page shows, by name, at a step: a number for each layer, NaN where it was not measured."""
    names = sorted({*LAYER_SERIES, *OVER_LAYERS, *GROUP_SERIES})
    parts = {name: name.partition(".") for name in names}
    known = [name for name in names if parts[name][0] in run.quantities]
    values = run.values_at(step, [(parts[name][0], parts[name][2] or "mean") for name in known])
    missing = np.full(len(run.layers), np.nan)
    return dict.fromkeys(names, missing) | dict(zip(known, values, strict=True))


@final
class Feed:
    """Follows one run. May be asked by several threads; raises `RunError` while the run cannot be read."""

    def __init__(self, id: str, name: str, path: Path) -> None:
        self.id, self.name, self.path = id, name, path
        self.asked = time.monotonic()
        self._lock = threading.RLock()
        self._followed: Followed | None = None
        self._generation = self._spoken = 0
        self._read = self._due = 0.0
        self._words = ""
        self._said: tuple[str, int, int] | None = None
        self._last: tuple[At, At, str] | None = None

    def whole(self) -> tuple[At, RunData]:
        """Everything, and how far that goes."""
        with self._lock:
            run = self._refresh().run
            check(run)
            return self._here(), gather_run(run, self.name, id=self.id, live=True)

    def since(self, at: At) -> tuple[At, str] | None:
        """What came since, as JSON, and how far that goes; None where nothing came.

        A viewer whose data cannot be extended is told to ask for all of them.
        """
        with self._lock:
            followed = self._refresh()
            self._speak(followed.run)
            here = self._here()
            if here == at:
                return None
            if at.generation != here.generation or not len(followed.begun) <= at.samples <= here.samples:
                return at, dumps({"id": self.id, "reset": True})
            if self._last is None or self._last[:2] != (at, here):
                self._last = at, here, self._update(followed, at, here)  # the same for all who have come as far
            return here, self._last[2]

    def distribution(self, layer: str, quantity: str, step: int) -> Distribution | None:
        """Of a layer's neurons at a step; None where there is no such thing."""
        with self._lock:
            run = self._refresh().run
            known = layer in run.layers and quantity in run.quantities and run.quantities[quantity].per_vector
            if not known or step not in run.steps:
                return None
            return distributions_at(run, layer, quantity, [int((run.steps == step).argmax())])[0]

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            if self._followed is not None:
                self._followed.close()
            self._followed = None

    def _refresh(self) -> Followed:
        """The run, read on; opened anew where another has taken its place, or what was read is not in it any more."""
        self.asked = now = time.monotonic()
        if self._followed is not None and now - self._read < PAUSE:
            return self._followed
        self._read = now
        try:
            found = (self.path / FILE).stat()
            identity = found.st_dev, found.st_ino
            if self._followed is None or self._followed.identity != identity or not self._followed.goes_on():
                self.close()
                self._followed = Followed(open_run(self.path, most=MOST), identity)
                self._generation += 1
        except RunError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise RunError(f"{self.name} is gone: its file was moved or deleted.") from error
        return self._followed

    def _here(self) -> At:
        samples = 0 if self._followed is None else len(self._followed.run.steps)
        return At(self._generation, samples, self._spoken)

    def _speak(self, run: Run) -> None:
        """Judge anew where there is something new, but not too often."""
        now = run.status, run.total, self._generation
        begun = time.monotonic()
        if now == self._said or (self._said is not None and now[0] == self._said[0] and begun < self._due):
            return
        layers = [{"summary": summary(reading), "spread": spread(reading)} for reading in layer_histories(run)]
        self._words = dumps({**spoken(run), "layers": layers})
        self._said, self._spoken = now, self._spoken + 1
        self._due = begun + max(WORDS, 10 * (time.monotonic() - begun))

    def _update(self, followed: Followed, at: At, here: At) -> str:
        run = followed.run
        new = followed.since(at.samples) if at.samples < here.samples else {"steps": []}
        head = {"id": self.id, "at": here, "from": at.samples, "status": run.status, "total": run.total}
        words = f',"words":{self._words}' if at.words != here.words else ""
        return f"{dumps({**head, **new})[:-1]}{words}}}"
