"""`python -m sim` is `kneesim`."""

from sim.cli.start import main

main()
