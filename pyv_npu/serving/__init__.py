"""Server of many requests: workloads, scheduler, step times and latencies for users (docs/serving.md)."""
