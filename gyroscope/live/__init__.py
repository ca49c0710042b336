"""A local page that follows runs while they train: server, index of runs, access, and a feed for each run."""
