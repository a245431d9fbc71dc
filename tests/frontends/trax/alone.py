"""Runs a Trax script on one device, without the launcher: `alone.py SCRIPT ...` or `alone.py -m MODULE ...`.

Trax as it is takes half a minute to be imported, and cannot resume from a checkpoint on today's JAX, so its modules
are made compatible here as well; everything else is plain JAX.
"""

import sys

from automap_launch.frontends.script import run_script
from automap_launch.frontends.trax import hook
from automap_launch.train_step import Entry

if __name__ == "__main__":
    hook.install()
    arguments = sys.argv[1:]
    if arguments[0] == "-m":
        run_script(Entry(script=None, module=arguments[1], args=tuple(arguments[2:])))
    else:
        run_script(Entry(script=arguments[0], module=None, args=tuple(arguments[1:])))
