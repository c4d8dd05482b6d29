"""P² inside an optimizer: the state of each parameter, applying it, building it, and whether it is still right."""
