"""Words for numbers that both verdicts and tables show."""
