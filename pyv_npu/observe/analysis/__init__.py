"""What the events of a run say about its layers and units: who was busy, with what, and what held it up."""
