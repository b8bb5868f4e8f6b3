"""Analysis of a run's spans by layer and unit: busy cycles, work and stalls."""
