"""Serve until TERM: `python -m tests.emulators.pubsub --port=8085`."""

from __future__ import annotations

import argparse

from tests.emulators.pubsub.server import PubSubEmulator

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.emulators.pubsub", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="TCP port of 127.0.0.1; default: a free one")
    parser.add_argument("--shortest-deadline-seconds", type=int, default=10)
    arguments = parser.parse_args()
    with PubSubEmulator(arguments.port, shortest_deadline_seconds=arguments.shortest_deadline_seconds) as emulator:
        print(f"listening on {emulator.endpoint}", flush=True)
        emulator.wait()
