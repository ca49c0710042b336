"""Data sets and models that experiments train: digits, text, translation, a teacher and its student."""
