"""Output of simulations, written by independent processes."""
