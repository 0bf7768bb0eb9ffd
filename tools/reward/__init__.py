"""Does the reward measure it?"""
