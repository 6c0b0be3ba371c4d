"""Measurements as interleaved ratios with their spread; `make bench` runs them all."""
