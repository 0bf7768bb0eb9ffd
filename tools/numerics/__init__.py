"""Which value is the first that is not finite, or too coarse?"""
