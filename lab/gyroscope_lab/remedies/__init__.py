"""Advice on trial: each remedy that the package prints, followed to the letter on real training."""
