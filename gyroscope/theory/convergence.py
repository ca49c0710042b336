"""Whether a run settles, from its total decay X = Σ a_t: the weight that it starts from shrinks by e^-X (ours).

Derived in docs/theory.md, "Settling and falling out".
"""

# From this total decay on, a run is longer than its memory and is compared with equilibrium: 1/e of the initial weight
# is left. Below it, the forecast is more accurate: 7-23 % off for a char-GPT with X = 0.11, whose equilibrium is 74 %
# off.
MEMORY_PASSED = 1.0
# Above this total decay a run settles: a twentieth of the initial weight is left.
SETTLES = 3.0
