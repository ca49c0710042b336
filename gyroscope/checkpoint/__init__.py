"""A checkpoint to findings: the last step, reconstructed from the weights and optimizer state in a file."""
