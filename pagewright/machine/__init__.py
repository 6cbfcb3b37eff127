"""Image + guest + options -> a running machine, and how it is spoken to."""
