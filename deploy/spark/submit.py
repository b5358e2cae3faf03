"""For `spark-submit`: runs a pipeline, or a ready one, as `penstock pipeline run` does.

spark-submit --master spark://host:7077 submit.py orders.yaml --state s3a://bucket/state
"""

import sys

from penstock.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["pipeline", "run"]
    main()
