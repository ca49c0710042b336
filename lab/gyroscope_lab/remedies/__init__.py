"""Trials of advice: each remedy that the package prints, applied exactly as printed on real training."""
