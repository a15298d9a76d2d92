"""`spark-submit ... isotherm_aggregator.py run --config aggregator.toml`: the commands of `isotherm-aggregator`.

The package `isotherm-aggregator` has to be installed in the Python of the driver; executors need only Spark and the
jars. The exit code is that of the command.
"""

from __future__ import annotations

import sys

from isotherm.aggregator.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
