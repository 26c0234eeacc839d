"""Words for numbers that verdicts and tables both use."""
