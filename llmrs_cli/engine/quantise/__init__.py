"""16-bit models into 4-bit ones: scales that protect what activations say matters, AWQ's files."""
