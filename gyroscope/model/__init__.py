"""From a model to the weight vectors that rotate: names, selection, groups, probe."""
