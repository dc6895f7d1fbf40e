"""Output of simulations, written by processes that know nothing of each other."""
