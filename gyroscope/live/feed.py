"""A run that is followed while it grows: read once, and sent to all its viewers."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from gyroscope._types import Array
from gyroscope.advice.history import layer_histories
from gyroscope.advice.layer_families import plain_name
from gyroscope.render.page import page_json
from gyroscope.report.run_data import LAYER_SERIES, OVER_LAYERS, RunData
from gyroscope.report.run_gather import check, findings_data, gather_run, over_layers
from gyroscope.report.run_head import run_head
from gyroscope.report.run_layers import distributions_at, spread, summary
from gyroscope.store import Run, RunError, open_run
from gyroscope.store.database import FILE

# Largest number of samples that a live page shows.
MAX_SAMPLES = 1000
# Seconds between readings of a file, for any number of viewers.
PAUSE = 0.5
# Shortest time in seconds before a run is judged again. Judging takes at most a tenth of the time.
JUDGING_PAUSE = 3.0
GROUP_SERIES = ("lr", "weight_decay")
# Layers that a comparison shows. All if None.
Layers = tuple[str, ...] | None


class Position(NamedTuple):
    """What a viewer has: which reading of the file, how many samples, and which findings.

    `reading` grows when the file is read from its beginning, `findings` each time that the run is judged.
    """

    reading: int
    samples: int
    findings: int


@final
class FollowedRun:
    """A run that grows only by samples. Its file, layers and stride stay as they were when it was opened."""

    def __init__(self, run: Run, identity: tuple[int, int]) -> None:
        self.run = run
        self.identity = identity
        self.stride = run.stride
        self.layers = run.layers
        self.first_steps = run.steps
        groups = [run.layer(name).group for name in self.layers]
        # The first layer of each group, because all layers of a group have the same learning rate.
        self.first_layers = [
            groups.index(group) if group in groups else None for group in range(1 + max(groups, default=-1))
        ]
        self._new: list[dict[str, Array]] = []

    def read_on(self) -> bool:
        """Read new samples. Return False if samples that were read before are no longer part of the run."""
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

    def since(self, sample: int, shown: Sequence[str]) -> dict[str, object]:
        """Return arrays of the samples from `sample` on. Arrays of layers are joined, layer after layer."""
        new = self._new[sample - len(self.first_steps) :]
        stacked = {name: np.array([values[name] for values in new]).reshape(len(new), -1).T for name in new[0]}
        steps = self.run.steps[sample:]
        groups = [{} if i is None else {name: stacked[name][i] for name in GROUP_SERIES} for i in self.first_layers]
        places = [self.layers.index(name) for name in shown]
        of_shown = {name: values[places] for name, values in stacked.items()}
        return {
            "steps": steps,
            "series": over_layers(of_shown),
            "groups": groups,
            "layers": {name: of_shown[name].ravel() for name in LAYER_SERIES},
        }


def values_at(run: Run, step: int) -> dict[str, Array]:
    """Return every series of a page by name at a step: a number for each layer, NaN if it was not measured."""
    names = sorted({*LAYER_SERIES, *OVER_LAYERS, *GROUP_SERIES})
    parts = {name: name.partition(".") for name in names}
    known = [name for name in names if parts[name][0] in run.quantities]
    values = run.values_at(step, [(parts[name][0], parts[name][2] or "mean") for name in known])
    missing = np.full(len(run.layers), np.nan)
    return dict.fromkeys(names, missing) | dict(zip(known, values, strict=True))


@final
class Feed:
    """Follows one run. Several threads may use it. It raises `RunError` while the run cannot be read."""

    def __init__(self, id: str, name: str, path: Path) -> None:
        self.id = id
        self.name = name
        self.path = path
        self.used_at = time.monotonic()
        self._lock = threading.RLock()
        self._followed: FollowedRun | None = None
        self._reading = 0
        self._read_at = 0.0
        self._judged_data: dict[str, Any] = {}
        self._layer_lines: dict[str, dict[str, object]] = {}
        self._findings_number = 0
        # Status, samples, logged values and reading when the run was last judged.
        self._judged: tuple[str, int, int, int] | None = None
        self._judge_at = 0.0
        self._last_update: tuple[Position, Position, Layers, str] | None = None

    @property
    def layers(self) -> list[str]:
        """All layers of the run."""
        with self._lock:
            return self._refresh().layers

    def whole(self, layers: Layers = None) -> tuple[Position, RunData]:
        """Return the run and its position, with the layers that a comparison shows."""
        with self._lock:
            run = self._refresh().run
            check(run)
            return self._position(), gather_run(run, self.name, layers=layers, id=self.id, live=True)

    def since(self, position: Position, layers: Layers = None) -> tuple[Position, str] | None:
        """Return new data since a position, as JSON, and the new position, or None if there are none.

        A viewer whose data cannot be extended gets a reset, and requests all data.
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
            # The same text for all viewers at this position.
            if self._last_update is None or self._last_update[:3] != (position, here, layers):
                self._last_update = (position, here, layers, self._update(followed, position, here, layers))
            return here, self._last_update[3]

    def distribution(self, layer: str, quantity: str, step: int) -> dict[str, Any] | None:
        """Return the distribution of a layer's neurons at a step, or None if the layer, quantity or step is unknown."""
        with self._lock:
            run = self._refresh().run
            # A comparison lists layers by their plain names.
            names = {plain_name(name): name for name in run.layers} | {name: name for name in run.layers}
            known = layer in names and quantity in run.quantities and run.quantities[quantity].per_vector
            if not known or step not in run.steps:
                return None
            return distributions_at(run, names[layer], quantity, [int((run.steps == step).argmax())])[0]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._followed is not None:
                self._followed.run.close()
            self._followed = None

    def _refresh(self) -> FollowedRun:
        """Return the run with its newest samples. It is opened again if another file took its place."""
        now = time.monotonic()
        self.used_at = now
        if self._followed is not None and now - self._read_at < PAUSE:
            return self._followed
        self._read_at = now
        try:
            file = self.path / FILE
            # The index follows no links, but one may have taken the place of the run since.
            if file.resolve() != file:
                raise RunError(f"{self.name} was moved, and a link is in its place.")
            status = file.stat()
            # Device and inode, because a run that was deleted and made again has the same path.
            identity = (status.st_dev, status.st_ino)
            if self._followed is None or self._followed.identity != identity or not self._followed.read_on():
                self.close()
                self._followed = FollowedRun(open_run(self.path, limit=MAX_SAMPLES), identity)
                self._reading += 1
        except RunError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise RunError(f"{self.name} was not found. Its file was moved or deleted.") from error
        return self._followed

    def _position(self) -> Position:
        samples = 0 if self._followed is None else len(self._followed.run.steps)
        return Position(self._reading, samples, self._findings_number)

    def _judge(self, run: Run) -> None:
        """Judge the run if it has new samples, but not too often. A run that ended is judged immediately."""
        now = (run.status, run.total, run.scalar_count, self._reading)
        begun = time.monotonic()
        same_status = self._judged is not None and now[0] == self._judged[0]
        if now == self._judged or (same_status and begun < self._judge_at):
            return
        histories = layer_histories(run)
        self._layer_lines = {each.name: {"summary": summary(each), "spread": spread(each)} for each in histories}
        self._judged_data = {"head": run_head(run), **findings_data(run, live=True)}
        self._findings_number += 1
        self._judged = now
        self._judge_at = begun + max(JUDGING_PAUSE, 10 * (time.monotonic() - begun))

    def _update(self, followed: FollowedRun, position: Position, here: Position, layers: Layers) -> str:
        run = followed.run
        shown = followed.layers if layers is None else layers
        update = {"id": self.id, "at": here, "from": position.samples, "status": run.status, "total": run.total}
        update |= followed.since(position.samples, shown) if position.samples < here.samples else {"steps": []}
        if position.findings != here.findings:
            lines = [self._layer_lines[name] for name in shown]
            findings = self._judged_data["findings"]
            if layers is not None:
                findings = [{**each, "layers": list(map(plain_name, each["layers"]))} for each in findings]
            update["findings"] = {**self._judged_data, "findings": findings, "layers": lines}
        return page_json(update)
