"""`python -m specamort` is the `specamort` command."""

import sys

from .cli import main

sys.exit(main())
