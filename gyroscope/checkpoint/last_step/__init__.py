"""The last optimizer step, reconstructed from weights and optimizer state."""
