"""Trials of rotation as a speedometer: whether it shows a learning rate that is too low or too high."""
