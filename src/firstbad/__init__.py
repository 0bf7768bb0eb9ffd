"""firstbad finds the first bad step of an RL post-training run and says why."""

__version__ = "0.1.0"
