"""Sources of the firmware and its prebuilt programs."""

import os

FOLDER = os.path.dirname(os.path.realpath(__file__))
