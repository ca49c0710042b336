"""A local page that follows runs while they train."""
