"""Trials of the summaries of plans, reports and autopsies, each on real training."""
