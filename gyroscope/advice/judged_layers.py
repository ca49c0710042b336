"""Layers that are judged together, and what sentences call them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite
from typing import Generic, TypeVar, final, overload

from gyroscope.advice.findings import Named, name_of
from gyroscope.advice.layer_families import describe_layers, short_labels
from gyroscope.advice.layer_view import LayerView, NormState

View = TypeVar("View", bound=LayerView)


@final
class Layers(Sequence[View], Generic[View]):
    """Some layers of a model. `among` is the names of all its layers, of which a sentence says "all" or a family."""

    def __init__(self, views: Iterable[View], among: Sequence[str] | None = None) -> None:
        self._views = list(views)
        self.among = among or [view.name for view in self._views]

    @overload
    def __getitem__(self, index: int) -> View: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[View]: ...
    def __getitem__(self, index: int | slice) -> View | Sequence[View]:
        return self._views[index]

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[View]:
        return iter(self._views)

    def where(self, keep: Callable[[View], bool]) -> "Layers[View]":
        """Return the layers for which `keep` holds."""
        return Layers(filter(keep, self._views), self.among)

    def in_state(self, *states: NormState) -> "Layers[View]":
        """Return the layers whose norm is in one of these states."""
        return self.where(lambda view: view.norm_state in states)

    def worst_first(self, badness: Callable[[View], float]) -> "Layers[View]":
        """Return the layers, those with the largest number first."""
        return Layers(sorted(self._views, key=badness, reverse=True), self.among)

    def label(self, member: Named | str) -> str:
        """Return the short name of a layer."""
        return short_labels(self.among)[name_of(member)]

    def describe(self, members: Iterable[Named | str] | None = None, *, worst: bool = False) -> str:
        """Return what a sentence calls these layers, or some of them; `worst` names the first if all are meant."""
        names = [name_of(member) for member in (self if members is None else members)]
        return describe_layers(names, self.among, worst=worst)

    def clause(self, singular: str, plural: str, *, worst: bool = False) -> str:
        """Return the beginning of a sentence: these layers, and a verb that agrees."""
        return begin_sentence(self.describe(worst=worst), singular if len(self) == 1 else plural)


def begin_sentence(layers: str, verb: str) -> str:
    """Return a subject and a verb. The name of a layer keeps its first letter."""
    return f"A{layers[1:]} {verb}" if layers.startswith("all ") else f"{layers} {verb}"


def run_length(view: LayerView, steps: float | None = None) -> float:
    """Return the length of the run in memories, Σ a_t; as if all `steps` were at the peak rate if no rate is known."""
    if isfinite(view.run_length) or steps is None or not isfinite(view.memory):
        return view.run_length
    return steps / view.memory
