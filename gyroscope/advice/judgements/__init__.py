"""One file for each judgement: a function from the views of layers to findings."""
