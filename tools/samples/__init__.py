"""How many samples decide?"""
