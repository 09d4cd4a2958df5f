"""A small Pub/Sub server for tests: what Google's emulator leaves out, and faults when a test asks for them.

Read in this order:

- `errors`: everything it says no to, in the service's words.
- `lanes`: in which order messages are handed out.
- `backlog`: the messages of one subscription: leases, retries, dead letters. No network.
- `broker`: topics and subscriptions by name, behind one lock.
- `faults`: what a test breaks.
- `unary`: the calls with one answer. `streaming`: StreamingPull.
- `server`: `PubSubEmulator`, the gRPC server in this process. `python -m tests.emulators.pubsub --port=N` is one alone.

It keeps to the service's documentation and, where that is silent, to Google's emulator. Left out: push, filters,
schemas, snapshots, seek, retention, permissions. Delivery is as orderly as it can be: nothing comes twice
without a reason.
"""

from tests.emulators.pubsub.backlog import Depth
from tests.emulators.pubsub.faults import Faults
from tests.emulators.pubsub.server import PubSubEmulator

__all__ = ["Depth", "Faults", "PubSubEmulator"]
