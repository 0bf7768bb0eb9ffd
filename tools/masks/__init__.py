"""Who is trained?"""
