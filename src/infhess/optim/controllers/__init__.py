"""The rules behind `observe`: a controller gets a context and returns a decision; only the optimizer acts on it."""
