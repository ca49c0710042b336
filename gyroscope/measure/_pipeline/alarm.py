"""The live alarm: incidents of a run while it is measured, told to a function of the user's."""

from collections.abc import Callable, Mapping, Sequence
from typing import final

import numpy as np

from gyroscope._types import Array
from gyroscope._worker import Worker
from gyroscope.advice import Finding
from gyroscope.advice.incidents import SERIES, Incident, IncidentDetector, incident_finding, loss_name
from gyroscope.measure.quantities import PER_VECTOR, PLACE
from gyroscope.store import STATISTICS, LayerSample

OnIncident = Callable[[Finding], object]

# Seconds that closing a run waits for the function.
PATIENCE = 5.0
VECTOR_NAMES = {row.quantity.name for row in PER_VECTOR}


@final
class IncidentAlarm:
    """Searches samples as they are stored, and calls the function in a thread of its own, once for each incident.

    A function that fails is reported once, and not called again.
    """

    def __init__(self, on_incident: OnIncident, report: Callable[[str], None]) -> None:
        self._on_incident = on_incident
        self._report = report
        self._detector = IncidentDetector()
        self._layers: list[str] = []
        self._losses: list[tuple[int, float]] = []
        self._failed = False
        self._worker: Worker[Finding] = Worker(self._call, name="gyroscope-incidents", failed=self._fail)

    def log(self, rows: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Keep the losses among what training logged, for the next sample."""
        for step, numbers in rows:
            name = loss_name(list(numbers))
            if name is not None:
                self._losses.append((step, numbers[name]))

    def update(self, step: int, layers: Mapping[str, LayerSample]) -> None:
        """Search a sample."""
        # A layer that has no gradient any more is not in the sample, and stays in the list.
        self._layers += [name for name in layers if name not in self._layers]
        values = np.full((len(SERIES), len(self._layers)), np.nan)
        for number, name in enumerate(self._layers):
            if name in layers:
                values[:, number] = _values(layers[name])
        self._send(self._detector.update(step, self._layers, values, *self._logged()))

    def close(self) -> None:
        """Search the losses after the last sample, and let the function finish, for a few seconds."""
        self._send(self._detector.finish(*self._logged()))
        if not self._worker.close(PATIENCE):
            self._report(f"on_incident did not finish within {PATIENCE:g} s and was left behind")

    def _logged(self) -> Array:
        """Return steps and losses since the last sample, and forget them."""
        logged = np.array(self._losses, np.float64).reshape(-1, 2)
        self._losses = []
        return logged.T

    def _send(self, incidents: Sequence[Incident]) -> None:
        for incident in incidents:
            self._worker.put(incident_finding(incident), always=True)

    def _call(self, findings: list[Finding]) -> None:
        if not self._failed:
            self._on_incident(findings[0])

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._report(f"on_incident failed and is not called any more: {type(error).__name__}: {error}")


def _values(sample: LayerSample) -> Array:
    """Return the numbers of a layer that the detector reads."""
    return np.array(
        [
            sample.statistics[PLACE[name], STATISTICS.index(stat)]
            if name in VECTOR_NAMES
            else sample.scalars[PLACE[name]]
            for name, stat in SERIES.items()
        ],
        np.float64,
    )
