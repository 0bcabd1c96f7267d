"""The expression language of specs: tokens, grammar, evaluation."""
