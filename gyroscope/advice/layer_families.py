"""Names of layers for people: short labels, and one family for the same layer of every block."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from gyroscope.advice import thresholds

# Layers that differ only by block numbers are shown as one family if there are at least this many.
MIN_FAMILY = 3
# Families that a sentence names before it counts the rest.
MAX_NAMED_FAMILIES = 3
# If this share of the names begins alike, the beginning is left out.
USUAL_SHARE = 0.6
# The name that torch gives a weight below `torch.nn.utils.parametrize`, and the part of a fused weight, such as [q].
PARAMETRIZED = re.compile(r"parametrizations\.(\w+)\.original\d*(\[\w+\])?$")
# The first number of a name, or its place in the name of a family.
BLOCK_NUMBER = re.compile(r"(?<![^.])(\d+|\*)(?=[.\[]|$)")
FUSED_PART = re.compile(r"\[\w+\]$")


@final
@dataclass(frozen=True)
class Family:
    """Layers that differ only by block numbers, such as h.*.attn.c_proj.

    label    pattern of the members' labels, or the label of the only member
    members  full names, in the order in which they were given
    """

    label: str
    members: tuple[str, ...]

    def __str__(self) -> str:
        return self.label if len(self.members) == 1 else f"{self.label} ({len(self.members)})"


def plain_name(name: str) -> str:
    """Return the name that a weight has without parametrizations, such as those of `gyro.nn.add_gain`.

    >>> plain_name("h.0.attn.parametrizations.weight.original[q]")
    'h.0.attn.weight[q]'
    """
    return PARAMETRIZED.sub(lambda match: match[1] + (match[2] or ""), name)


def short_labels(names: Sequence[str]) -> dict[str, str]:
    """Return a label for each name, without the beginning that most names share and the end that all share.

    >>> short_labels(["transformer.h.0.fc.weight", "transformer.lm_head.parametrizations.weight.original"])
    {'transformer.h.0.fc.weight': 'h.0.fc', 'transformer.lm_head.parametrizations.weight.original': 'lm_head'}
    >>> list(short_labels(["h.0.c_attn.weight[q]", "h.0.mlp.weight"]).values())
    ['h.0.c_attn[q]', 'h.0.mlp']
    """
    parts = {name: plain_name(name).split(".") for name in names}
    prefix = _usual_prefix(list(parts.values())) if len(parts) > 1 else []
    end = {FUSED_PART.sub("", each[-1]) for each in parts.values()}
    labels = {}
    for name, each in parts.items():
        start = len(prefix) if each[: len(prefix)] == prefix else 0
        label = each[start:]
        # The end that all share is usually "weight". A number alone would not read as a layer.
        if len(end) == 1 and len(label) > 1 and not (len(label) == 2 and label[0].isdigit()):
            fused_part = FUSED_PART.search(label[-1])
            label = label[:-1]
            label[-1] += fused_part[0] if fused_part else ""
        labels[name] = ".".join(label)
    return (
        labels if len(set(labels.values())) == len(labels) else {name: ".".join(each) for name, each in parts.items()}
    )


def group_families(names: Sequence[str], shapes: Mapping[str, tuple[int, ...]] | None = None) -> list[Family]:
    """Return the families of some layers in order. Layers of different shapes are never in one family.

    >>> names = [f"h.{block}.{kind}.weight" for block in range(3) for kind in ("attn", "mlp")]
    >>> [str(family) for family in group_families([*names, "head.weight"])]
    ['h.*.attn (3)', 'h.*.mlp (3)', 'head']
    """
    labels = short_labels(names)
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name in names:
        pattern = ".".join("*" if part.isdigit() else part for part in labels[name].split("."))
        # The layers of an nn.Sequential have only numbers as names.
        key = labels[name] if pattern.startswith("*") and pattern.count(".") < 2 else pattern
        groups.setdefault((key, tuple((shapes or {}).get(name, ()))), []).append(name)
    families = []
    for (pattern, _), members in groups.items():
        if len(members) >= MIN_FAMILY:
            families.append(Family(pattern, tuple(members)))
        else:
            families += [Family(labels[name], (name,)) for name in members]
    return families


def describe_layers(names: Sequence[str], among: Sequence[str], noun: str = "layers", *, worst: bool = True) -> str:
    """Return a phrase for some layers among all layers of the model. The most striking one comes first.

    If these are all layers, `worst` adds the name of the first.

    >>> blocks = [f"h.{block}.attn.weight" for block in range(12)]
    >>> describe_layers(blocks, blocks)
    'all 12 layers (worst: h.0.attn)'
    >>> describe_layers(blocks, [*blocks, "head.weight"])
    'h.*.attn (12)'
    >>> describe_layers([blocks[3]], [*blocks, "head.weight"])
    'h.3.attn'
    """
    labels = short_labels(among)
    if len(names) == 1:
        return labels[names[0]]
    if len(names) == len(among) and len(names) >= MIN_FAMILY:
        return f"all {len(names)} {noun}" + (f" (worst: {labels[names[0]]})" if worst else "")
    whole = {member: family for family in group_families(among) for member in family.members}
    counts: dict[str, tuple[Family, int]] = {}
    for name in names:
        family = whole[name]
        counts[family.label] = (family, counts.get(family.label, (family, 0))[1] + 1)
    return join_words([_share_text(family, count, names, labels) for family, count in counts.values()])


def join_words(words: Sequence[str], most: int = MAX_NAMED_FAMILIES) -> str:
    """Return words as a list in a sentence, with the number of those beyond `most`.

    >>> join_words(["a", "b"]), join_words(["a", "b", "c", "d", "e"])
    ('a and b', 'a, b, c and 2 more')
    """
    if len(words) <= most + 1:
        return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
    return f"{', '.join(words[:most])} and {len(words) - most} more"


def chart_labels(labels: Sequence[str], width: int) -> list[str]:
    """Return labels of layers or families for a chart, in at most `width` characters.

    The beginning that all blocks share is left out, and the asterisk of a family.

    >>> chart_labels(["layers.*.attn.q_proj (3)", "lm_head"], 16), chart_labels(["layers.10.mlp", "layers.2.mlp"], 16)
    (['attn.q_proj (3)', 'lm_head'], ['10.mlp', '2.mlp'])
    """
    starts = {label[: number.start()] for label in labels if (number := BLOCK_NUMBER.search(label)) is not None}
    shared = starts.pop() if len(starts) == 1 else ""
    return [cut_middle(label.removeprefix(shared).removeprefix("*."), width) for label in labels]


def cut_middle(label: str, width: int) -> str:
    """Return a label of at most `width` characters: the middle is left out, never the block number.

    >>> cut_middle("layers.17.self_attention.query_key_value", 24)
    'layers.17.s…ry_key_value'
    >>> cut_middle("vision_model.layers.17.self_attention.q_proj", 18)
    '…17…tention.q_proj'
    """
    if len(label) <= width:
        return label
    number = BLOCK_NUMBER.search(label)
    start = label[: (width - 1) // 2]
    if number is not None and number.end() > len(start):
        # The number and everything before it, or only the number if that leaves no room for the end.
        start = label[: number.end()] if number.end() < thresholds.MAX_LABEL_START * width else f"…{number[0]}"
    return f"{start}…{label[len(label) - (width - 1 - len(start)) :]}"


def _share_text(family: Family, count: int, names: Sequence[str], labels: Mapping[str, str]) -> str:
    if count == len(family.members):
        return str(family)
    if count == 1:
        return labels[next(name for name in names if name in family.members)]
    return f"{family.label} ({count} of {len(family.members)})"


def _usual_prefix(lists: Sequence[Sequence[str]]) -> list[str]:
    """Return the parts with which most lists begin. The word before a block number stays, as h does in h.0."""
    prefix: list[str] = []
    while True:
        place = len(prefix)
        within = [parts for parts in lists if list(parts[:place]) == prefix and len(parts) > place + 2]
        following = Counter(parts[place] for parts in within).most_common(1)
        if not following or following[0][1] < USUAL_SHARE * len(lists):
            return prefix
        if any(parts[place + 1].isdigit() for parts in within if parts[place] == following[0][0]):
            return prefix
        prefix.append(following[0][0])
