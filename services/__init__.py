"""Real brokers, a real database and a real Airflow as local processes: for tests, the demo and benchmarks.

Development only: nothing here is shipped. Every service listens on 127.0.0.1, on a free port, and is ended by whoever
started it, or at the latest when that process ends, in whatever way.
"""
