"""Run as a program, from the checkout: parse a folder's Dag files as Airflow does, where no SDK can be imported.

Prints a JSON object: ``dags`` (file name -> Dag ids) and ``errors`` (file name -> traceback).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.packaging.import_without_sdks import NoSdks

sys.meta_path.insert(0, NoSdks())


def main(folder: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(folder)
    dags: dict[str, list[str]] = {}
    for dag in bag.dags.values():
        dags.setdefault(Path(dag.fileloc).name, []).append(dag.dag_id)
    # On a line of its own: Airflow logs to standard output too.
    print()
    print(json.dumps({"dags": dags, "errors": {Path(file).name: text for file, text in bag.import_errors.items()}}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
