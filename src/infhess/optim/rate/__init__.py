"""Learning rates from curvature: the probe, the filter over probes, and the settings of each rule."""
