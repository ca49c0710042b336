"""Whether a run settles, by its total decay X = Σ a_t. The initial weight shrinks by e^-X (ours).

Derived in docs/theory.md, "Settling and falling out".
"""

# Above this total decay a run is longer than its memory and is compared with equilibrium, because 1/e of the initial
# weight is left. Below it, the forecast is more accurate. For a char-GPT with X = 0.11 it was 7-23 % off, and the
# equilibrium 74 %.
MEMORY_PASSED = 1.0
# Above this total decay a run settles, because a twentieth of the initial weight is left.
SETTLES = 3.0
