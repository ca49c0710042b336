"""Numbers in sentences, and the formulas that several findings share."""

from collections.abc import Iterable, Sequence
from math import isfinite

from gyroscope.advice.layer_facts import LayerFacts
from gyroscope.advice.thresholds import MAX_EXACT_NUMBER
from gyroscope.theory import UpdateRule

RECURSION = "mean-field recursion of E‖w‖², E⟨w,m⟩, E‖m‖² under the schedule (`gyroscope.theory.forecast`)"
RUN_LENGTH = "run length X = Σ a_t: the initial weights shrink by e^-X"


def format_number(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits.

    >>> [format_number(value) for value in (0.0032444, 12345.6, 2.0, float("inf"), float("nan"))]
    ['0.00324', '12,300', '2', '∞', '–']
    >>> format_number(153.2, 2)
    '150'
    """
    if not isfinite(value):
        return "–" if value != value else "∞" if value > 0 else "-∞"
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if 10**digits <= abs(rounded) < MAX_EXACT_NUMBER else f"{rounded:.{digits}g}"


def format_range(values: Iterable[float], digits: int = 3) -> str:
    """Return the smallest and the largest of some numbers, or one number if both are written alike.

    >>> format_range([9.81, 12.04]), format_range([2.0, 2.0001])
    ('9.81 to 12', '2')
    """
    numbers = list(values)
    low = format_number(min(numbers), digits)
    high = format_number(max(numbers), digits)
    return low if low == high else f"{low} to {high}"


def memories_text(layers: Sequence[LayerFacts]) -> str:
    """Return the run length of some layers in memories, such as "5.5 memories of 200 steps"."""
    memory = format_range([layer.memory for layer in layers], 2)
    return f"{format_memories(layer.run_length for layer in layers)} of {memory} steps"


def format_memories(lengths: Iterable[float]) -> str:
    """Return run lengths with their unit.

    >>> format_memories([0.2, 5.53]), format_memories([1.0])
    ('0.2 to 5.5 memories', '1 memory')
    """
    text = format_range(lengths, 2)
    return f"{text} {'memory' if text == '1' else 'memories'}"


def rule_text(rule: UpdateRule) -> str:
    """Return a rule with its settings, numbers rounded.

    >>> from gyroscope.theory import AdamW
    >>> rule_text(AdamW(lr=0.1 + 0.2, weight_decay=0.1))
    'AdamW(lr=0.3, weight_decay=0.1, betas=(0.9, 0.999))'
    """
    shown = {name: value for name, value in rule.settings.items() if value is not None and value is not False}
    values = (f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in shown.items())
    return f"{rule.name}({', '.join(values)})"
