"""Writes down what an RL post-training run did, so that a failure can be explained later.

Loads nothing but the standard library, and never raises into training.
"""

from firstbad_recorder.writer import SCHEMA_VERSION, Recorder

__version__ = "0.1.0"
__all__ = ["SCHEMA_VERSION", "Recorder"]
