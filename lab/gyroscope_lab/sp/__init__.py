"""Spherical Perspective on Learning with Batch Norm (Roburin et al. 2020): optimizers seen on the sphere."""
