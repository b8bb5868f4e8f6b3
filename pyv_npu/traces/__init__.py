"""Files for viewers of pipelines and of waveforms (docs/debugging.md, "Pipeline view and waveforms")."""
