"""Problems whose inputs, outputs and reference a spec declares itself."""
