"""Spherical Motion Dynamics (Wan et al. 2020): the norm and rotation of weights under SGD with decay."""
