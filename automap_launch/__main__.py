"""`python -m automap_launch` is the console script `automap-launch`."""

from automap_launch.cli import main

main()
