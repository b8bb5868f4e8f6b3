"""`python -m pyv_npu` is `pyv-npu`."""

import sys

from pyv_npu.cli.main import main

sys.exit(main())
