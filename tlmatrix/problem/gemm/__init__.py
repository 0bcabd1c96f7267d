"""Matrix products, optionally transposed, accumulating or scaled."""
