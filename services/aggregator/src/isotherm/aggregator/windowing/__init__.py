"""Which windows there are, and what they hold beside the numbers that all windows have.

`measures` describes the windows of the query that reads the input, `rollup_plan` those that are made of others. Both
are pure: this package imports nothing of the aggregator, and must not know Spark.
"""
