"""Can old and new probability be compared?"""
