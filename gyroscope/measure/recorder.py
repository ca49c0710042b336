"""The recorder: all that stands between a measured sample and the run on disk, in threads beside training."""

import atexit
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, final

from torch.optim import Optimizer

from gyroscope.measure.config import rule_or_none
from gyroscope.measure.failures import Trouble
from gyroscope.measure.layers import Tracked
from gyroscope.measure.quantities import QUANTITIES
from gyroscope.measure.sample_worker import Arrival, Desk
from gyroscope.measure.sinks import Outlet, Sink
from gyroscope.store import LayerInfo, Writer

Status = Literal["finished", "failed", "stopped"]


@final
class Recorder:
    """Takes samples of one run: works them out, stores them and tells the sinks."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Mapping[str, Any],
        *,
        resume: bool = False,
        raw: re.Pattern[str] | None = None,
        sinks: Iterable[Sink] = (),
        sink_layers: re.Pattern[str] | None = None,
    ) -> None:
        self.writer = Writer(path, quantities=[row.quantity for row in QUANTITIES], config=config, resume=resume)
        self.trouble = Trouble(self.writer.note)
        self.indices: dict[str, int] = {}
        self.outlets = [Outlet(sink, self.trouble.say) for sink in sinks]
        self.desk = Desk(self.writer, self.indices, self.outlets, self.trouble.stop, raw=raw, sink_layers=sink_layers)
        self.closed = False
        # After the writer's own, and so called before it: a run that nobody closed keeps its last samples.
        atexit.register(self.desk.close)

    def add(self, layers: Iterable[Tracked], optimizer: Optimizer) -> None:
        """Make layers known to the run."""
        for layer in layers:
            shape, split = tuple(layer.parameter.shape), layer.split
            rule = rule_or_none(optimizer.param_groups[layer.group], optimizer)
            record = LayerInfo(
                layer.name,
                shape,
                split.granularity,
                split.axis,
                split.group_size,
                layer.vectors,
                layer.fan_in,
                layer.group,
                None if rule is None else repr(rule),
                layer.rows,
            )
            self.indices[layer.name] = self.writer.add_layer(record)

    def put(self, arrival: Arrival) -> bool:
        """Hand over a sample; False where the desk is too far behind to take it."""
        taken = self.desk.put(arrival)
        if not taken:
            self.trouble.say("samples came faster than they could be worked out, and some were left out")
        return taken

    def flush(self) -> None:
        """Wait until everything handed over can be read in the run."""
        self.desk.flush()
        self.writer.flush()

    def close(self, status: Status) -> None:
        """Work off what is there and end the run; a second call does nothing."""
        if self.closed:
            return
        self.closed = True
        self.desk.close()
        atexit.unregister(self.desk.close)
        for outlet in self.outlets:
            outlet.close()
        self.writer.close(status)
