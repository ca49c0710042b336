"""A checkpoint to findings: what weights and optimizer state tell of the last step, after training, from a file."""
