"""Networks to train: small files, standard shapes, a normalisation of choice."""
