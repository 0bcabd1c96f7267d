"""The parts of the pytest plugin; `tlmatrix.pytest_plugin` holds its hooks and loads them."""
