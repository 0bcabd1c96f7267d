"""TileLang kernels and the operators built from them."""
