"""A run that is followed for every viewer of it: read once, sent to many."""

import threading
import time
from pathlib import Path
from typing import NamedTuple, final

import numpy as np

from gyroscope.advice.history import layer_histories
from gyroscope.render.page import page_json
from gyroscope.report.run_data import LAYER_SERIES, OVER_LAYERS, Array, Distribution, RunData
from gyroscope.report.run_gather import check, findings_data, gather_run, over_layers
from gyroscope.report.run_layers import distributions_at, spread, summary
from gyroscope.report.run_theory import bound_of, update_bound
from gyroscope.store import Run, RunError, open_run
from gyroscope.store.database import FILE

# Samples that a live page shows at most.
MOST = 1000
# Seconds between readings of a file, however many viewers ask.
PAUSE = 0.5
# Seconds between diagnoses, at least; and at most a tenth of the time goes into them.
JUDGING_PAUSE = 3.0
GROUP_SERIES = ("lr", "weight_decay")


class Position(NamedTuple):
    """How far a viewer's data go: which reading of the file they extend, their samples, and which findings they have.

    `reading` grows when the file is read from its beginning, `findings` with each diagnosis.
    """

    reading: int
    samples: int
    findings: int


@final
class FollowedRun:
    """A run that grows by samples only: its file, layers and stride stay as they were when it was opened."""

    def __init__(self, run: Run, identity: tuple[int, int]) -> None:
        self.run = run
        self.identity = identity
        self.stride = run.stride
        self.layers = run.layers
        self.first_steps = run.steps
        self.bound = bound_of(layer_histories(run))
        groups = [run.layer(name).group for name in self.layers]
        # The first layer of each group; all layers of a group have the same learning rate.
        self.first_layers = [
            groups.index(group) if group in groups else None for group in range(1 + max(groups, default=-1))
        ]
        self._new: list[dict[str, Array]] = []

    def read_on(self) -> bool:
        """Read new samples; False where what was read before is not part of the run any more."""
        before = self.run.total
        new = self.run.refresh()
        # The run was resumed, and steps were measured again.
        if self.run.total != before + new:
            return False
        if self.run.stride != self.stride or self.run.layers != self.layers:
            return False
        steps = self.run.steps
        if not np.array_equal(steps[: len(self.first_steps)], self.first_steps):
            return False
        known = len(self.first_steps) + len(self._new)
        self._new += [values_at(self.run, int(step)) for step in steps[known:]]
        return True

    def since(self, sample: int) -> dict[str, object]:
        """Arrays of the samples from `sample` on. Those of layers are one array by name: layer after layer."""
        new = self._new[sample - len(self.first_steps) :]
        stacked = {name: np.array([values[name] for values in new]).reshape(len(new), -1).T for name in new[0]}
        steps = self.run.steps[sample:]
        groups = [{} if i is None else {name: stacked[name][i] for name in GROUP_SERIES} for i in self.first_layers]
        return {
            "steps": steps,
            "series": {**over_layers(stacked), "update_bound": update_bound(self.bound, steps)},
            "groups": groups,
            "layers": {name: stacked[name].ravel() for name in LAYER_SERIES},
        }


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
    """Follows one run. Several threads may use it; it raises `RunError` while the run cannot be read."""

    def __init__(self, id: str, name: str, path: Path) -> None:
        self.id = id
        self.name = name
        self.path = path
        self.used_at = time.monotonic()
        self._lock = threading.RLock()
        self._followed: FollowedRun | None = None
        self._reading = 0
        self._read_at = 0.0
        # As JSON.
        self._findings = ""
        self._findings_number = 0
        # Status, samples, logged values and reading of the last diagnosis.
        self._judged: tuple[str, int, int, int] | None = None
        self._judge_at = 0.0
        self._last_update: tuple[Position, Position, str] | None = None

    def whole(self) -> tuple[Position, RunData]:
        """Everything, and how far that goes."""
        with self._lock:
            run = self._refresh().run
            check(run)
            return self._position(), gather_run(run, self.name, id=self.id, live=True)

    def since(self, position: Position) -> tuple[Position, str] | None:
        """What came since a position, as JSON, and how far that goes; None where nothing came.

        A viewer whose data cannot be extended gets a reset, and asks for all of them.
        """
        with self._lock:
            followed = self._refresh()
            self._judge(followed.run)
            here = self._position()
            if here == position:
                return None
            extends = len(followed.first_steps) <= position.samples <= here.samples
            if position.reading != here.reading or not extends:
                return position, page_json({"id": self.id, "reset": True})
            if self._last_update is None or self._last_update[:2] != (position, here):
                # The same text for all viewers that have come as far.
                self._last_update = (position, here, self._update(followed, position, here))
            return here, self._last_update[2]

    def distribution(self, layer: str, quantity: str, step: int) -> Distribution | None:
        """Of a layer's neurons at a step; None where there is no such thing."""
        with self._lock:
            run = self._refresh().run
            known = layer in run.layers and quantity in run.quantities and run.quantities[quantity].per_vector
            if not known or step not in run.steps:
                return None
            return distributions_at(run, layer, quantity, [int((run.steps == step).argmax())])[0]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._followed is not None:
                self._followed.run.close()
            self._followed = None

    def _refresh(self) -> FollowedRun:
        """The run, read on; opened again where another file took its place or what was read is not in it any more."""
        now = time.monotonic()
        self.used_at = now
        if self._followed is not None and now - self._read_at < PAUSE:
            return self._followed
        self._read_at = now
        try:
            status = (self.path / FILE).stat()
            # Device and inode: a run that was deleted and made again has the same path.
            identity = (status.st_dev, status.st_ino)
            if self._followed is None or self._followed.identity != identity or not self._followed.read_on():
                self.close()
                self._followed = FollowedRun(open_run(self.path, most=MOST), identity)
                self._reading += 1
        except RunError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise RunError(f"{self.name} is gone: its file was moved or deleted.") from error
        return self._followed

    def _position(self) -> Position:
        samples = 0 if self._followed is None else len(self._followed.run.steps)
        return Position(self._reading, samples, self._findings_number)

    def _judge(self, run: Run) -> None:
        """Diagnose where there is something new, but not too often; a run that ended is diagnosed at once."""
        now = (run.status, run.total, run.scalar_count, self._reading)
        begun = time.monotonic()
        same_status = self._judged is not None and now[0] == self._judged[0]
        if now == self._judged or (same_status and begun < self._judge_at):
            return
        layers = [{"summary": summary(layer), "spread": spread(layer)} for layer in layer_histories(run)]
        self._findings = page_json({**findings_data(run, live=True), "layers": layers})
        self._findings_number += 1
        self._judged = now
        self._judge_at = begun + max(JUDGING_PAUSE, 10 * (time.monotonic() - begun))

    def _update(self, followed: FollowedRun, position: Position, here: Position) -> str:
        run = followed.run
        new = followed.since(position.samples) if position.samples < here.samples else {"steps": []}
        head = {"id": self.id, "at": here, "from": position.samples, "status": run.status, "total": run.total}
        # The findings are JSON already, and go before the closing brace.
        findings = f',"findings":{self._findings}' if position.findings != here.findings else ""
        return f"{page_json({**head, **new})[:-1]}{findings}}}"
