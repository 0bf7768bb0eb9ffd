"""Does the pipeline deliver the gradient of the objective?"""
