"""Data sets and models for experiments: digits, images, text, translation, and a teacher with its student."""
