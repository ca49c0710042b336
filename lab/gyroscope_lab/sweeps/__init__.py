"""Sweeps: many training runs from one file, in processes of this machine or on Ray, and a report on all of them."""
