"""Are the steps too bold, or is the state wrong?"""
