"""`python -m sim` is `kneesim`."""

from sim.cli.main import main

main()
