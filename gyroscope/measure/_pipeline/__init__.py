"""The stages between an optimizer step and a stored sample, in order."""
