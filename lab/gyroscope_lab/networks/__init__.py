"""Networks to train, in standard shapes and with a choice of normalisation."""
