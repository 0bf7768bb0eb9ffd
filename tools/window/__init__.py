"""Which step was first, in which signal, and what do the rollouts look like?"""
