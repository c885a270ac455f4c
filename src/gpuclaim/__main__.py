"""`python -m gpuclaim`."""

from gpuclaim.cli.main import main

main()
