"""Matrix products: transposed or not, overwriting or accumulating."""
