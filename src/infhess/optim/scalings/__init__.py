"""How RateFree scales gradients."""
