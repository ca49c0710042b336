"""Files to parameters with their optimizer state."""
