"""Runs the scripts of cases one after the other, so that they share a JVM: a line [SCRIPT, FOLDER] in, a line out.

python case_process.py < lines      answers {"said": what it printed} or {"error": traceback}, in JSON, a line each
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
import traceback


def main() -> None:
    from pyspark.sql import SparkSession

    answers = sys.stdout
    for line in sys.stdin:
        script, folder = json.loads(line)
        said, sys.argv = io.StringIO(), [script, folder]
        answer = {}
        try:
            with contextlib.redirect_stdout(said):
                runpy.run_path(script, run_name="__main__")
            answer["said"] = said.getvalue()
        except (Exception, SystemExit):  # noqa: BLE001  # whatever it is, it is the answer
            answer["error"] = traceback.format_exc()
        finally:
            if (session := SparkSession.getActiveSession()) is not None:
                session.stop()  # the next script has a warehouse of its own
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
