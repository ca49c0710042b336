"""Transfer on trial: tuned settings moved to another batch, length, width or optimizer, on real training."""
