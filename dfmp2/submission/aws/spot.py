"""The notice that a Spot instance will be taken back, two minutes ahead.

AWS Batch ends a container of such an instance at the end of the two minutes or not at all before the instance goes, so
the container asks by itself, every five seconds as AWS recommends. Source: Amazon EC2 user guide, "Spot Instance
interruption notices" and "Use the Instance Metadata Service".
"""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.request

ADDRESS = "http://169.254.169.254"  # the same on every instance; AWS_EC2_METADATA_SERVICE_ENDPOINT wins
EVERY = 5.0  # s
PATIENCE = 1.0  # s for an answer
TOKEN = ("X-aws-ec2-metadata-token-ttl-seconds", "21600")  # header that asks for a token, and how long it shall last


class SpotNotice:
    """Asks the instance now and then; asks no more where nobody answers."""

    def __init__(self) -> None:
        self._address = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", ADDRESS).rstrip("/")
        self._silent = os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
        self._token = ""
        self._asked = -EVERY

    def given(self) -> bool:
        """Whether the instance will be taken back."""
        if self._silent or time.monotonic() - self._asked < EVERY:
            return False
        self._asked = time.monotonic()
        try:
            if not self._token:
                self._token = self._ask("PUT", "/latest/api/token", *TOKEN)
            self._ask("GET", "/latest/meta-data/spot/instance-action", "X-aws-ec2-metadata-token", self._token)
        except urllib.error.HTTPError as error:
            if error.code == 401:  # the token has expired
                self._token = ""
            return False  # 404: no notice, or no Spot instance
        except (OSError, http.client.HTTPException):
            self._silent = not self._token  # no such service here; but one that answered before is only late
            return False
        return True

    def _ask(self, method: str, path: str, header: str, value: str) -> str:
        request = urllib.request.Request(f"{self._address}{path}", method=method, headers={header: value})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=PATIENCE) as answer:
            return str(answer.read(4096).decode(errors="replace"))
