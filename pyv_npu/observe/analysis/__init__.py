"""What the spans of a run say about its layers and units: which were busy, with what, and what stalled them."""
