"""The live alarm: incidents of a run while it is measured, told to a function of the user's."""

from collections.abc import Callable, Mapping, Sequence
from typing import final

import numpy as np

from gyroscope._types import Array
from gyroscope.advice import Finding
from gyroscope.advice.incidents import SERIES, Incident, IncidentDetector, incident_finding, loss_name
from gyroscope.measure.quantities import stored_number
from gyroscope.measure.sinks import UserFunction
from gyroscope.store import LayerSample

OnIncident = Callable[[Finding], object]


@final
class IncidentAlarm:
    """Searches samples as they are stored, and calls the function once for each incident."""

    def __init__(self, on_incident: OnIncident, report: Callable[[str], None]) -> None:
        self._detector = IncidentDetector()
        self._layers: list[str] = []
        self._losses: list[tuple[int, float]] = []
        self._function = UserFunction(on_incident, "on_incident", report)

    def log(self, rows: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Keep the losses among what training logged, for the next sample."""
        for step, numbers in rows:
            name = loss_name(list(numbers))
            if name is not None:
                self._losses.append((step, numbers[name]))

    def update(self, step: int, layers: Mapping[str, LayerSample]) -> None:
        # A layer that has no gradient any more is not in the sample, and stays in the list.
        self._layers += [name for name in layers if name not in self._layers]
        values = np.full((len(SERIES), len(self._layers)), np.nan)
        for number, name in enumerate(self._layers):
            if name in layers:
                values[:, number] = [stored_number(layers[name], *series) for series in SERIES.items()]
        self._tell(self._detector.update(step, self._layers, values, *self._logged()))

    def close(self) -> None:
        """Search the losses after the last sample, and let the function finish, for a few seconds."""
        self._tell(self._detector.finish(*self._logged()))
        self._function.close()

    def _logged(self) -> Array:
        """Return steps and losses since the last sample, and forget them."""
        logged = np.array(self._losses, np.float64).reshape(-1, 2)
        self._losses = []
        return logged.T

    def _tell(self, incidents: Sequence[Incident]) -> None:
        for incident in incidents:
            self._function.put(incident_finding(incident), always=True)
