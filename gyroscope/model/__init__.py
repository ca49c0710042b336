"""A model to the weight vectors that turn: names, selection, groups, probe."""
