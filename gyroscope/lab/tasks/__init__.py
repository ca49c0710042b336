"""Data sets and models that experiments train: digits, text, a small transformer, a teacher and its student."""
