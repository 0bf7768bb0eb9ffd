"""Wrapping a method of a trainer; each trainer has its own."""

from firstbad_recorder.wrap import wrap

__all__ = ["wrap"]
