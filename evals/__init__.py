"""Measure how well firstbad does: recorded runs with known cause, how they were made, scores."""
