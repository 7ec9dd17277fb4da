"""Style as tests: what is not checked is not a rule."""
