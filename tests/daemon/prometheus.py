# SPDX-License-Identifier: Apache-2.0
"""A Prometheus server for a test, from Debian's package."""
import json
import shutil
import signal
import subprocess
import urllib.parse

from daemon import free_port, get
from cli import Skip, write


def program(name):
    """Its path, or a skip."""
    path = shutil.which(name)
    if not path:
        raise Skip("%s is not there (package prometheus)" % name)
    return path


class Prometheus:
    """A server of its own that scrapes one address each second."""

    def __init__(self, target):
        self.port = free_port()
        config = write("prometheus.yml", json.dumps({"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [
            {"job_name": "tenuto", "static_configs": [{"targets": ["127.0.0.1:%d" % target]}]}]}))
        self.log = open("prometheus.log", "w")
        self.process = subprocess.Popen([program("prometheus"), "--config.file=" + config, "--storage.tsdb.path=tsdb",
                                         "--web.listen-address=127.0.0.1:%d" % self.port], stdout=self.log, stderr=self.log)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.log.close()

    def ask(self, path, **query):
        try:
            status, _, text = get(self.port, "/api/v1/%s?%s" % (path, urllib.parse.urlencode(query)))
        except OSError:
            return None  # it does not listen yet
        return json.loads(text)["data"] if status == 200 else None

    def samples(self, expression):
        data = self.ask("query", query=expression)
        return [(r["metric"], float(r["value"][1])) for r in data["result"]] if data else []
