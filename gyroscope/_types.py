"""Type aliases of the arrays that pass between packages: one for each kind of entry."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Float32: TypeAlias = npt.NDArray[np.float32]
Int64: TypeAlias = npt.NDArray[np.int64]
# Whole numbers of any width.
Integers: TypeAlias = npt.NDArray[np.integer]
Mask: TypeAlias = npt.NDArray[np.bool_]

# A number, or an array of numbers over layers, neurons or steps.
Values: TypeAlias = float | Array
# A float, a NumPy array or a tensor. Closed forms consist of operators, so all three work.
Number: TypeAlias = Any
