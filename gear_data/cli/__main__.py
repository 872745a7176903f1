"""Runs the command `gear-data` as `python -m gear_data.cli`."""

import sys

from gear_data.cli import main

sys.exit(main())
