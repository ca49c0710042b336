"""RE's closed form of the transient, against the recursion that follows v too."""

import numpy as np
from gyroscope_lab.re._transient import adamw_norm2

from gyroscope.theory import AdamW, forecast

KNOWN = {"fan_in": 128, "unit_grad_norm": 1.0}


def test_the_closed_form_of_re_36_is_within_eleven_percent():
    rule = AdamW(0.02, 0.25)
    f = forecast(rule, steps=2000, norm=0.5 * rule.equilibrium(**KNOWN).norm, **KNOWN)
    t = np.arange(1, 2001)
    closed = np.sqrt(adamw_norm2(t, f.initial_norm**2, f.equilibrium_norm**2, 0.005))
    assert 0.005 < np.abs(closed / f.norm - 1)[50:].max() < 0.11
