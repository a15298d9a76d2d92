"""The file that `spark-submit` takes, in a folder that holds nothing which a program could import by mistake.

Python looks for modules in the folder of the file that it runs first. `python -m isotherm.aggregator.submit` prints
where the file is.
"""
