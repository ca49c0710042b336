"""Layers that are judged together, and their names in sentences."""

from collections.abc import Callable, Iterable, Sequence
from math import inf, isfinite
from typing import Self, TypeVar, final

from gyroscope.advice.layer_families import describe_layers, short_labels
from gyroscope.advice.layer_view import LayerView, NormState

View = TypeVar("View", bound=LayerView)


@final
class Layers(tuple[View, ...]):
    """Some layers of a model. `among` lists the names of all its layers, so that a sentence can name a family."""

    among: Sequence[str]

    def __new__(cls, views: Iterable[View], among: Sequence[str] | None = None) -> Self:
        """Keep the views, and the names of all layers."""
        layers = super().__new__(cls, views)
        layers.among = among or layers.names
        return layers

    @property
    def names(self) -> list[str]:
        """Full names of the layers."""
        return [view.name for view in self]

    def where(self, keep: Callable[[View], bool]) -> "Layers[View]":
        """Return the layers for which `keep` holds."""
        return Layers(filter(keep, self), self.among)

    def in_state(self, *states: NormState) -> "Layers[View]":
        """Return the layers whose norm is in one of these states."""
        return self.where(lambda view: view.norm_state in states)

    def worst_first(self, badness: Callable[[View], float]) -> "Layers[View]":
        """Return the layers, sorted so that the largest number comes first."""
        return Layers(sorted(self, key=badness, reverse=True), self.among)

    def label(self, member: LayerView | str) -> str:
        """Return the short name of a layer."""
        return short_labels(self.among)[member if isinstance(member, str) else member.name]

    def describe(self, *, worst: bool = False) -> str:
        """Return the name of these layers in a sentence. If they are all layers, `worst` names the first."""
        return describe_layers(self.names, self.among, worst=worst)

    def clause(self, singular: str, plural: str, *, worst: bool = False) -> str:
        """Return the beginning of a sentence: these layers, and a verb that agrees."""
        return begin_sentence(self.describe(worst=worst), singular if len(self) == 1 else plural)


def begin_sentence(layers: str, verb: str) -> str:
    """Return a subject and a verb. The name of a layer keeps its first letter."""
    return f"A{layers[1:]} {verb}" if layers.startswith("all ") else f"{layers} {verb}"


def run_length(view: LayerView, steps: float | None = None) -> float:
    """Return the length of the run in memories, Σ a_t. Unknown rates count as the peak rate over all `steps`."""
    if isfinite(view.run_length) or steps is None or not 0 < view.memory < inf:
        return view.run_length
    return steps / view.memory
