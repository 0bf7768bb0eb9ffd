"""Writes down what an RL post-training run did, so that a failure can be explained later.

Loads nothing but the standard library, and never raises into training.
"""

from firstbad_recorder.folder import SCHEMA_VERSION
from firstbad_recorder.recorder import Recorder
from firstbad_recorder.surroundings import surroundings

__version__ = "0.1.0"
__all__ = ["SCHEMA_VERSION", "Recorder", "surroundings"]
