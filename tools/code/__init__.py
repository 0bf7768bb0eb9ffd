"""A look at the user's loss code by its syntax tree: read, never imported, never executed."""
