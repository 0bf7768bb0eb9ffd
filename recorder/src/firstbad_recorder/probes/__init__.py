"""Measurements made on purpose, inside the training process or on saved captures.

They look at numbers, never at names: a loss function is fed hand-made input and its gradients are
read, a model is run twice on the same rows. Each returns plain data with the fields of FORMAT.md.
torch is imported inside functions, so that importing this package loads nothing.
"""
