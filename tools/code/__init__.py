"""A look at the user's loss code by its syntax tree: read, never imported, never executed."""

PLACES = "places in the code"
"""Title of the table of findings; here, as what shows results loads nothing that measures."""
