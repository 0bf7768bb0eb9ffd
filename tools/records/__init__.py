"""Are the records what they claim to be?"""
