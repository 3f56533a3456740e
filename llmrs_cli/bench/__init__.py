"""Measurements of engines, kernels and starts; no command line here, `cli.bench` prints what they give."""
