"""Kernels of this machine's device, measured into a kernel table.

The package needs torch, numpy and yaml alone, so that the folder `sim` can be carried to a bare GPU machine
and run there: `python -m sim.calibration.measure --device cuda --out TABLE.csv`.
"""
