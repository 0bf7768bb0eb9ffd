"""Measure: evidence types, run readers, and one file per family of measurements.

Nothing in this package judges. A tool returns numbers; bounds live in `firstbad.playbooks`.
"""
