"""A transfer with the warmup that its start needs, as it is shown."""

from dataclasses import dataclass
from typing import final

import numpy as np

from gyroscope.planner.transfer_settings import TransferRequest
from gyroscope.render.rendered import Document, Rendered
from gyroscope.render.transfer_document import transfer_document
from gyroscope.report.transfer_data import NeededWarmup, TransferData
from gyroscope.report.transfer_sentences import transfer_json
from gyroscope.theory import Transfer, transfer
from gyroscope.theory.law import Weights
from gyroscope.theory.layer_prediction import SHORTEST_RUN, InitialLayer, needed_warmups
from gyroscope.theory.scaling import TransferRow

# Steps of a run whose tenth is searched for a warmup, so that the answer takes no more than a moment.
MAX_SEARCHED_RUN = 20_000


@final
@dataclass(frozen=True)
class TransferAnswer(Rendered):
    """Settings for another scale, shown as text, as a page or as JSON."""

    data: TransferData

    def document(self) -> Document:
        """Return the answer for people; `explain` adds the sources of the rules."""
        return transfer_document(self.data)

    def json(self) -> str:
        """Return the answer as JSON, for programs."""
        return transfer_json(self.data)


def answer_transfer(settings: TransferRequest) -> TransferAnswer:
    """Return the answer to checked settings.

    >>> from gyroscope.planner.transfer_settings import read_transfer
    >>> tuned = {"optimizer": "lion", "lr": 1e-4, "weight_decay": 1.0, "batch": "64", "samples": "1M"}
    >>> [row.name for row in answer_transfer(read_transfer({**tuned, "to": "batch=256"})).data.chosen]
    ['tau', 'sqrt-batch']
    """
    # Numbers far out of proportion overflow to infinity, which the table can show.
    with np.errstate(all="ignore"):
        moved = transfer(
            settings.rule,
            base=settings.base,
            to=settings.to,
            schedule=settings.schedule,
            initial_norm=settings.initial_norm,
        )
        chosen = moved.recommended if settings.only is None else (_asked_row(moved, settings.only),)
        found = {row.name: _needed_warmup(moved, row, settings.initial_norm) for row in chosen}
    warmups = {name: warmup for name, warmup in found.items() if warmup is not None}
    check = None
    if settings.check is not None:
        from gyroscope.planner.transfer_run import check_run  # reading a run takes longer than to answer

        check = check_run(moved, settings.check, settings.only)
    return TransferAnswer(TransferData(moved, settings.unit, settings.schedule, settings.only, warmups, check))


def _asked_row(moved: Transfer, name: str) -> TransferRow:
    row = next(row for row in moved.rows if row.name == name)
    if row.lr is None:
        raise ValueError(f"the transfer rule {name!r} gives no settings for this change: {row.note}")
    return row


def _needed_warmup(moved: Transfer, row: TransferRow, norm: float) -> NeededWarmup | None:
    """Return the warmup that a row's start needs, or None if inputs are missing."""
    width = moved.to.width
    if width is None or row.start_over_rotation is None or row.lr is None:
        return None
    settings = {"lr": row.lr, "weight_decay": row.weight_decay, "betas": row.betas}
    own = ("lr", "weight_decay", "betas") if moved.rule.has_weight_decay else ("lr", "betas")
    rule = moved.rule.replace(**{name: settings[name] for name in own if settings[name] is not None})
    rows = round(width) if rule.whole_matrix else 1
    weights = Weights.checked(fan_in=width, shape=(rows, round(width)) if rule.whole_matrix else None)
    layer = InitialLayer("hidden", weights, norm * rows**0.5)
    steps = max(round(min(moved.to.steps, MAX_SEARCHED_RUN)), 1)
    return NeededWarmup(needed_warmups(rule, steps, [layer])[0], max(steps // SHORTEST_RUN, 1))
