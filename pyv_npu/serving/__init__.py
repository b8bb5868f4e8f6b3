"""A server of many requests: workloads, scheduler, the time of a step, and what users see (docs/serving.md)."""
