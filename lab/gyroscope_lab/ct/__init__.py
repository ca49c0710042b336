"""Continuous-Time Analysis of Adaptive Optimization and Normalization: Adam's stable region and its flow."""
