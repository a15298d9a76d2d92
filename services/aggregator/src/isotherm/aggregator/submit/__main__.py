"""`python -m isotherm.aggregator.submit`: where the file is that `spark-submit` takes."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.stdout.write(f"{Path(__file__).with_name('isotherm_aggregator.py')}\n")
