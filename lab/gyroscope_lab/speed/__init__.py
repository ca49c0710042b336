"""Speed on trial: how fast good runs rotate, and whether that shows a learning rate that is too low or too high."""
