"""Sentences on trial: what plans, reports and autopsies say at their head, each tried on real training."""
