"""Shared parts of all experiments: their form, trials, claims, records and figures."""
